#pragma once
// Layouts of the payloads of a pass: those that travel around the ring, those that the ranks of a group exchange, and
// those of operands whose type on the wire is not their own.

#include <algorithm>
#include <span>

#include "annulus/core/definitions.hpp"
#include "annulus/core/index.hpp"
#include "annulus/schedule/group_exchange.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/plan_request.hpp"
#include "annulus/schedule/planned_step.hpp"
#include "annulus/schedule/rank_groups.hpp"
#include "annulus/schedule/wire.hpp"

namespace annulus {

namespace detail {

/// Layouts of a ring.
struct RingLayouts {
  PayloadLayout prefetched, carried, resident;  ///< see RingPlan
};

/// `checksums`: of each payload that is sent.
RingLayouts ring_layouts(PlanRequest const& request, RankGroups const& groups, Rotation rotation, Index checksums);
/// `ring`: layouts of the rings between the groups. `keys`: of all ranks.
GroupExchange group_exchange(PlanRequest const& request, RankGroups const& groups, RingLayouts const& ring, Index keys,
                             Index checksums);

/// True for the parts that are rounded to the wire type.
constexpr bool has_wire_type(Part part) {
  return part == Part::q || part == Part::k || part == Part::v || part == Part::dout;
}

/// Buffers of a rank for a wire type: the operands that it works on, rounded, and the rows of a step, widened. Empty
/// without one.
struct WireBuffers {
  PayloadLayout queries,
      keys;                ///< of a row of q, or of k and v; in the backward pass of a group's queries also of dout
  PayloadLayout own_dout;  ///< of a row of dout of the rank's own queries
  PayloadLayout read;      ///< of a row as it is read in a step
  Index query_rows = 0, key_rows = 0, own_queries = 0, read_rows = 0;

  /// prefetched: layout of what travels around the ring. arriving: the steps whose rows are those of other ranks. own:
  /// true if the operands that the rank works on are among the buffers.
  WireBuffers(PlanRequest const& request, RankGroups const& groups, Rank rank, PayloadLayout const& prefetched,
              std::span<PlannedStep const> arriving, bool own);

  Index bytes() const {
    return queries.buffer_bytes(query_rows) + keys.buffer_bytes(key_rows) + own_dout.buffer_bytes(own_queries) +
           read.buffer_bytes(read_rows);
  }
};

#if defined(ANNULUS_DEFINITIONS)

/// Bytes of an element of the operands, as they travel.
inline int travelling_bytes(PlanRequest const& request) {
  return request.wire == Wire::as_stored ? request.element_bytes : 2;
}

/// Layouts with the heads of `shape`.
class PartsOfRows {
 public:
  PartsOfRows(PlanRequest const& request, AttentionShape const& shape) : request_(request), shape_(shape) {}

  PartLayout of_queries(Part part, Index dim, Index bytes) const {
    return {part, shape_.batch, shape_.query_heads, dim, bytes};
  }
  PartLayout of_keys(Part part, Index dim, Index bytes) const {
    return {part, shape_.batch, shape_.kv_heads, dim, bytes};
  }
  /// q, and what the backward pass needs in addition. `e`: bytes of an element of the operands, as they travel.
  PayloadLayout queries(Index e) const {
    Index const l = request_.lse_bytes;
    PayloadLayout layout{{of_queries(Part::q, shape_.head_dim, e)}};
    if (request_.pass == Pass::backward)
      for (PartLayout const& part :
           {of_queries(Part::dout, shape_.value_dim, e), of_queries(Part::lse, 1, l),
            of_queries(Part::lse_remainder, 1, l), of_queries(Part::delta, 1, request_.accumulator_bytes)})
        layout.parts.push_back(part);
    return with_document_ids(layout);
  }
  PayloadLayout keys(Index e) const {
    return with_document_ids({{of_keys(Part::k, shape_.head_dim, e), of_keys(Part::v, shape_.value_dim, e)}});
  }
  PayloadLayout state() const {
    Index const a = request_.accumulator_bytes;
    return {{of_queries(Part::accumulator, shape_.value_dim, a), of_queries(Part::maximum, 1, a),
             of_queries(Part::sum, 1, a)}};
  }
  PayloadLayout query_gradient(Index bytes) const { return {{of_queries(Part::dq, shape_.head_dim, bytes)}}; }
  PayloadLayout key_gradients(Index bytes) const {
    return {{of_keys(Part::dk, shape_.head_dim, bytes), of_keys(Part::dv, shape_.value_dim, bytes)}};
  }

 private:
  PayloadLayout with_document_ids(PayloadLayout layout) const {
    if (request_.document_ids) layout.parts.push_back({Part::document_ids, shape_.batch, 1, 1, 4});
    return layout;
  }

  PlanRequest const& request_;
  AttentionShape const& shape_;
};

ANNULUS_INLINE RingLayouts ring_layouts(PlanRequest const& request, RankGroups const& groups, Rotation rotation,
                                        Index checksums) {
  PartsOfRows const parts(request, groups.shape());
  Index const a = request.accumulator_bytes, e = travelling_bytes(request);
  bool const forward = request.pass == Pass::forward, keys_rotate = rotation == Rotation::keys;
  PayloadLayout const of_queries = forward ? parts.state() : parts.query_gradient(a);
  PayloadLayout const of_keys = forward ? PayloadLayout{} : parts.key_gradients(a);
  RingLayouts layouts{keys_rotate ? parts.keys(e) : parts.queries(e), keys_rotate ? of_keys : of_queries,
                      keys_rotate ? of_queries : of_keys};
  layouts.prefetched.checksums = layouts.carried.checksums = checksums;
  if (groups.joins_results()) layouts.resident.checksums = checksums;
  return layouts;
}

ANNULUS_INLINE GroupExchange group_exchange(PlanRequest const& request, RankGroups const& groups,
                                            RingLayouts const& ring, Index keys, Index checksums) {
  GroupExchange exchange(groups);
  PartsOfRows const parts(request, groups.shape());
  Index const e = request.element_bytes, l = request.lse_bytes, g = request.gradient_bytes;
  Index const travelling = travelling_bytes(request);
  auto const heads_of = [&](PairExtents const& pairs) {
    return groups.splits_heads() && pairs.heads > 1 ? pairs.heads / groups.size() : pairs.heads;
  };
  if (groups.gathers(Side::query)) {
    exchange.before(GroupRows::queries) = parts.queries(travelling);
    auto& pairs = exchange.before(GroupRows::pairs).parts;
    if (request.bias.heads > 0) pairs.push_back({Part::bias, request.bias.batch, heads_of(request.bias), keys, e});
    if (request.mask.heads > 0)
      pairs.push_back({Part::boolean_mask, request.mask.batch, heads_of(request.mask), keys, 1});
    if (request.pass == Pass::backward && request.bias_gradient_elements > 0)
      exchange.after(GroupRows::pairs) = {
          {{Part::dbias, 1, 1, request.bias.batch * heads_of(request.bias) * keys, request.accumulator_bytes}}};
  }
  if (groups.gathers(Side::key)) exchange.before(GroupRows::keys) = parts.keys(travelling);
  if (groups.splits_heads() && request.pass == Pass::forward) {
    exchange.after(GroupRows::queries) = {{parts.of_queries(Part::output, groups.shape().value_dim, e),
                                           parts.of_queries(Part::lse, 1, l),
                                           parts.of_queries(Part::lse_remainder, 1, l)}};
  } else if (groups.splits_heads()) {
    exchange.after(GroupRows::queries) = parts.query_gradient(g);
    exchange.after(GroupRows::keys) = parts.key_gradients(g);
  } else if (groups.joins_results()) {
    exchange.after(groups.gathers(Side::query) ? GroupRows::queries : GroupRows::keys) = ring.resident;
  }
  for (GroupRows rows : GroupExchange::all)
    for (PayloadLayout* layout : {&exchange.before(rows), &exchange.after(rows)})
      layout->checksums = layout->empty() ? 0 : checksums;
  return exchange;
}

ANNULUS_INLINE WireBuffers::WireBuffers(PlanRequest const& request, RankGroups const& groups, Rank rank,
                                        PayloadLayout const& prefetched, std::span<PlannedStep const> arriving,
                                        bool own) {
  if (request.wire == Wire::as_stored) return;
  AttentionShape const& shape = groups.shape();
  PartsOfRows const parts(request, shape), of_own(request, request.shape);
  Index const e = request.element_bytes;
  queries = {{parts.of_queries(Part::q, shape.head_dim, e)}};
  keys = {{parts.of_keys(Part::k, shape.head_dim, e), parts.of_keys(Part::v, shape.value_dim, e)}};
  query_rows = groups.rows(Side::query, rank);
  key_rows = groups.rows(Side::key, rank);
  if (request.pass == Pass::backward) {
    if (groups.gathers(Side::query)) queries.parts.push_back(parts.of_queries(Part::dout, shape.value_dim, e));
    own_dout = {{of_own.of_queries(Part::dout, shape.value_dim, e)}};
    own_queries = groups.own_rows(Side::query, rank);
  }
  read.parts = prefetched.parts;
  for (PartLayout& part : read.parts)
    if (has_wire_type(part.part)) part.element_bytes = e;
  for (PlannedStep const& step : arriving) read_rows = std::max(read_rows, step.held.size());
  if (!own) query_rows = key_rows = own_queries = 0;
}

#endif

}  // namespace detail

}  // namespace annulus
