#pragma once
// Plan request: all inputs of a plan, and the limits below which its sums and products do not overflow.

#include <algorithm>
#include <string_view>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/old_name.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/schedule/leaf_grid.hpp"
#include "annulus/schedule/schedule.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

/// The side that travels around the ring; the other one stays. pass-KV and pass-Q are the names of Yang et al.,
/// "Context Parallelism for Scalable Million-Token Inference", arXiv 2411.01783.
enum class Rotation {
  automatic,  ///< the side that sends fewer bytes; keys if both send the same
  keys,       ///< pass-KV: k and v travel, in the backward pass followed by their gradients
  queries,    ///< pass-Q: q travels with the running state; backward with dout, lse, its remainder, delta and dq
};

constexpr std::string_view name_of(Rotation rotation) {
  return rotation == Rotation::automatic ? "automatic" : rotation == Rotation::keys ? "keys" : "queries";
}

/// Extents of a bias or boolean mask, which may be 1 for all batch items or heads; 0: not given.
struct PairExtents {
  Index batch = 0;  ///< batch items
  Index heads = 0;  ///< query heads

  bool operator==(PairExtents const&) const = default;
};

/// All inputs of a plan.
struct PlanRequest {
  Pass pass = Pass::forward;         ///< forward or backward
  AttentionShape shape{};            ///< equal on all ranks
  std::vector<Index> query_lengths;  ///< local_queries of every rank
  std::vector<Index> key_lengths;    ///< local_keys of every rank
  Sharding sharding{};               ///< owner of each position
  AttentionRules rules{};            ///< the mask and the query offset (unset: 0) decide; all are carried to the steps
  Rotation rotation = Rotation::automatic;  ///< asked for; RingPlan::rotation() is the one chosen
  Schedule schedule = Schedule::ring;       ///< how rows travel
  int ranks_per_group = 0;                  ///< ranks of a group; 0: as many as send the fewest bytes
  detail::OldName<int> group{};             ///< deprecated: ranks_per_group
  Wire wire = Wire::as_stored;              ///< type in which q, k, v and dout travel
  int element_bytes = 4;                    ///< of q, k, v, dout
  int accumulator_bytes = 4;                ///< of the running state and of gradients in flight
  int lse_bytes = 4;                        ///< of lse, and of its remainder
  int gradient_bytes = 4;                   ///< of dq, dk and dv as returned
  PairExtents bias{};                       ///< rows that ranks of a group exchange
  PairExtents mask{};                       ///< the same
  Index sinks = 0;                          ///< sink logits per query head; their gradients are summed over the ranks
  Index joint_keys = 0;                     ///< keys that all ranks hold; their gradients are summed over the ranks
  Index bias_gradient_elements = 0;         ///< of dbias, per local query; 0 if it is summed or written in the result
  bool bias_gradient = false;               ///< dbias is computed
  /// The backend writes dbias in its result type; no two pairs of query and key share an element.
  bool writes_bias_gradient = false;
  bool document_ids = false;         ///< packed documents: ids travel with their rows
  detail::OldName<bool> segments{};  ///< deprecated: document_ids
  bool elementwise = false;          ///< a boolean mask or a predicate is evaluated per pair
  bool bound_to_queries = false;     ///< a bias or boolean mask stays with its queries, so that only keys can rotate
  bool zero_copy = false;            ///< ranks read each other's payloads directly instead of receiving copies
  bool checked = false;              ///< payloads travel with checksums
  /// Consecutive ranks that are near each other: groups of two_levels whose size is not given stay within them. 0: not
  /// known
  int near = 0;
  /// Of all batch items, by position, disjoint and ascending; a call does not know them before it runs, so that they
  /// decide the work that the plan counts, and neither steps nor bytes. Empty: not known
  Documents documents{};

  bool operator==(PlanRequest const&) const = default;

  bool has_wire() const { return wire != Wire::as_stored; }  ///< q, k, v and dout are rounded to another type
  /// Rows of every rank.
  std::vector<Index> const& lengths(Side side) const { return side == Side::query ? query_lengths : key_lengths; }
  /// Rows of all ranks together; the largest Index where their sum is larger.
  Index rows(Side side) const {
    Index sum = 0;
    for (Index length : lengths(side)) sum = detail::saturating_sum(sum, length);
    return sum;
  }
};

/// Adds the gradient of the bias to a request that has all else; a forward pass computes none. `backend_writes`:
/// the backend is a ClosingBackend.
inline void add_bias_gradient(PlanRequest& request, bool backend_writes) {
  if (request.pass != Pass::backward) return;
  request.bias_gradient = true;
  PairExtents const bias = request.bias;
  request.bias_gradient_elements =
      detail::saturating_product(detail::saturating_product(bias.batch, bias.heads), request.rows(Side::key));
  request.writes_bias_gradient = backend_writes && request.gradient_bytes == request.element_bytes &&
                                 bias == PairExtents{request.shape.batch, request.shape.query_heads};
}

namespace detail {

/// Throws ShapeError for lengths of different numbers of ranks, or if sizes overflow (check_sizes), and
/// UnsupportedError for choices that exclude each other.
void check_request(PlanRequest const& request);

#if defined(ANNULUS_DEFINITIONS)

/// Throws ShapeError if positions, pairs of a step, or bytes of a buffer or of all messages overflow. All sums and
/// products of the plan, except those of the work, are below the limits checked here. Negative lengths are rejected by
/// the sharding.
inline void check_sizes(PlanRequest const& request) {
  AttentionShape const& s = request.shape;
  auto const ranks = static_cast<Index>(request.query_lengths.size());
  Index const global_queries = request.rows(Side::query), global_keys = request.rows(Side::key);
  Index const positions = std::max(global_queries, global_keys);
  check<ShapeError>(positions < unbounded / 4, "plan: ", positions, " positions in all; accepted: fewer than ",
                    unbounded / 4);
  // A rank may work on the rows of a group, of all ranks at most.
  bool const in_groups = has_groups(request.schedule);
  auto const longest = [&](Side side) { return *std::ranges::max_element(request.lengths(side)); };
  Index const rows = std::max({longest(Side::query), longest(Side::key), Index{1}});
  Index const queries = in_groups ? global_queries : longest(Side::query),
              keys = in_groups ? global_keys : longest(Side::key);
  check<ShapeError>(request.joint_keys >= 0 && saturating_product(queries, request.joint_keys) < largest_index,
                    "plan: ", request.joint_keys, " joint keys and ", queries,
                    " queries of a rank; accepted: 0 or more, fewer than ", largest_index, " pairs");
  check<ShapeError>(saturating_product(queries, keys) < largest_index, "plan: a step of ", queries, " queries and ",
                    keys, " keys; accepted: fewer than ", largest_index, " pairs");
  if (BlockMask const& blocks = request.rules.block_mask) {
    Index const offset = request.rules.query_offset.value_or(0), end = offset + global_queries;
    check<ShapeError>(global_queries == 0 || (offset >= 0 && end <= blocks.queries()),
                      "block mask covers the query positions [0, ", blocks.queries(), "); the queries have [", offset,
                      ", ", end, ")");
    check<ShapeError>(global_keys <= blocks.keys(), "block mask covers ", blocks.keys(),
                      " keys; expected global_keys = ", global_keys, " or more");
  }
  // The widest row of any payload: a query with its dout and at most four scalars. Extents of 0 count as 1, because
  // the other ones are multiplied, too. In a pass every position visits each rank once at most.
  auto const product = [](Index first, auto... others) {
    ((first = saturating_product(first, others)), ...);
    return first;
  };
  Index const heads = product(std::max<Index>(s.batch, 1), std::max({s.query_heads, s.kv_heads, Index{1}}));
  Index const width = saturating_sum(saturating_sum(s.head_dim, s.value_dim), 4);
  Index const bytes = std::max({request.element_bytes, request.accumulator_bytes, request.lse_bytes});
  // A reproducible pass may hold a partial result of a row for each leaf.
  Index const partial = request.rules.reproducible ? LeafGrid::most_leaves : 1;
  Index const largest =
      std::max({product(heads, width, bytes, std::max<Index>(positions, 1), ranks, partial),
                product(request.bias_gradient_elements, bytes, in_groups ? positions : rows, in_groups ? ranks : 1),
                product(request.bias.batch, request.bias.heads, global_keys, bytes, positions, ranks),
                product(request.mask.batch, request.mask.heads, global_keys, bytes, positions, ranks),
                product(heads, request.sinks, bytes, ranks, ranks + partial),
                product(heads, width, request.joint_keys, bytes, ranks, ranks + 1)});
  check<ShapeError>(largest < largest_index / 32, "plan: batch ", s.batch, ", ", s.query_heads, " query heads, ",
                    s.kv_heads, " kv heads, head_dim ", s.head_dim, ", value_dim ", s.value_dim, ", ", request.sinks,
                    " sink logits per head, ", positions, " positions and ", rows, " rows of a rank, on ", ranks,
                    " ranks, make ", largest, " bytes or more; accepted: fewer than ", largest_index / 32);
}

ANNULUS_INLINE void check_request(PlanRequest const& request) {
  check<ShapeError>(!request.query_lengths.empty() && request.query_lengths.size() == request.key_lengths.size(),
                    "plan: query lengths of ", request.query_lengths.size(), " ranks and key lengths of ",
                    request.key_lengths.size(), "; both need one per rank");
  check<UnsupportedError>(
      !(request.bound_to_queries && request.rotation == Rotation::queries),
      "rotation of queries with a bias or boolean mask: their rows cover all keys and stay with the "
      "queries; accepted: rotation of keys, or automatic");
  check<UnsupportedError>(!(request.schedule == Schedule::all_gather && request.rotation != Rotation::automatic),
                          "rotation of ", name_of(request.rotation),
                          " with schedule all gather, in which no rows rotate; accepted: automatic rotation");
  bool const doubled = request.schedule == Schedule::double_ring;
  check<UnsupportedError>(!(request.rules.reproducible && (doubled || has_groups(request.schedule))),
                          "reproducible with schedule ", words_of(request.schedule),
                          ": the order of its sums is planned for the steps of a single ring; accepted: "
                          "schedule ring or both directions");
  check<UnsupportedError>(!(doubled && request.zero_copy),
                          "zero-copy exchange with schedule double ring, in which rows travel by messages; "
                          "accepted: exchange by messages");
  check_sizes(request);
  check<UnsupportedError>(!request.has_wire() || request.element_bytes > 2, "wire ", name_of(request.wire),
                          " for operands of ", request.element_bytes,
                          " bytes an element; accepted for 4 and 8, or as stored");
}

#endif

}  // namespace detail

}  // namespace annulus
