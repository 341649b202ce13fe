#pragma once
// Ring plan: the steps of one pass, the rows that each rank sends, its work and its memory. A plan needs no data, and
// every rank computes the same plan from the same request.

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

/// The side that travels around the ring; the other one stays. pass-KV and pass-Q are the names of Yang et al., "Context
/// Parallelism for Scalable Million-Token Inference", arXiv 2411.01783.
enum class Rotation {
  automatic,  ///< the side that sends fewer bytes; keys if both send the same
  keys,       ///< pass-KV: k and v travel, in the backward pass followed by their gradients
  queries,    ///< pass-Q: q travels with the running state; backward with dout, lse, its remainder, delta and dq
};

constexpr std::string_view name_of(Rotation rotation) {
  return rotation == Rotation::automatic ? "automatic" : rotation == Rotation::keys ? "keys" : "queries";
}

/// All inputs of a plan.
struct PlanRequest {
  Pass pass = Pass::forward;         ///< forward or backward
  AttentionShape shape{};            ///< equal on all ranks
  std::vector<Index> query_lengths;  ///< local_queries of every rank
  std::vector<Index> key_lengths;    ///< local_keys of every rank
  Sharding sharding{};               ///< owner of each position
  AttentionRules rules{};            ///< the mask and the query offset (unset: 0) decide; all are carried to the steps
  Rotation rotation = Rotation::automatic;  ///< asked for; RingPlan::rotation() is the one chosen
  int element_bytes = 4;                    ///< of q, k, v, dout
  int accumulator_bytes = 4;                ///< of the running state and of gradients in flight
  int lse_bytes = 4;                        ///< of lse, and of its remainder
  Index sinks = 0;                          ///< sink logits per query head; their gradients are summed over the ranks
  Index bias_gradient_elements = 0;         ///< of dbias, per local query; 0 if it is summed in the result itself
  bool segments = false;                    ///< packed documents: ids travel with their rows
  bool elementwise = false;                 ///< a boolean mask or a predicate is evaluated per pair
  bool bound_to_queries = false;  ///< a bias or boolean mask stays with its queries, so that only keys can rotate
  bool zero_copy = false;         ///< ranks read each other's payloads directly instead of receiving copies
  bool checked = false;           ///< payloads travel with checksums

  bool operator==(PlanRequest const&) const = default;
};

/// One step of one rank, which works on rows of `owner`. Row ranges count the owner's local rows.
struct PlannedStep {
  Rank owner = 0;              ///< rank whose rows are here
  Index visible_pairs = 0;     ///< per batch item and query head
  Index multiply_adds = 0;     ///< of all batch items and heads
  RowRange held{};             ///< rows of the owner that the rank holds
  RowRange sent{};             ///< those of them that the prefetched shift of this step sends
  RowRange carried{};          ///< rows whose results the carried shift of this step sends
  RowRange arriving{};         ///< rows whose results the carried shift of this step receives
  Index prefetched_bytes = 0;  ///< sent by the prefetched shift
  Index carried_bytes = 0;     ///< sent by the carried shift
};

/// The plan of one pass for all ranks.
class RingPlan {
 public:
  /// Throws ShapeError for lengths that do not fit the sharding or sizes that overflow, and UnsupportedError where
  /// queries are to rotate with an operand that is bound to them.
  explicit RingPlan(PlanRequest request);

  PlanRequest const& request() const { return request_; }                        ///< as given
  Rotation rotation() const { return rotation_; }                                ///< keys or queries, never automatic
  int ranks() const { return static_cast<int>(request_.query_lengths.size()); }  ///< of the ring
  int steps() const { return static_cast<int>(offsets_.size()); }                ///< of the pass, the same on all ranks

  /// At step i rank r works on rows of owner r - offset(i), modulo ranks. The first offset is 0: its own rows.
  int offset(int step) const { return offsets_[static_cast<std::size_t>(step)]; }
  Rank owner(Rank rank, int step) const { return wrap(rank - offset(step)); }  ///< of the rows that are here

  /// Distance in ranks of the prefetched shift between step i and i + 1.
  int prefetched_hop(int step) const { return offset(step + 1) - offset(step); }

  /// True if results are sent directly to their owner after each step, because only parts of shards travel (local
  /// masks); otherwise they travel on with their rows and reach the owner with the last shift.
  bool carried_direct() const { return direct_; }
  /// Distance in ranks of the carried shift after step i; 0: there is none.
  int carried_hop(int step) const {
    if (steps() == 1) return 0;
    if (direct_) return step == 0 ? 0 : ranks() - offset(step);
    return step + 1 < steps() ? prefetched_hop(step) : ranks() - offset(step);
  }

  /// What a rank does in a step.
  PlannedStep const& step(Rank rank, int step) const {
    return planned_[static_cast<std::size_t>(rank * steps() + step)];
  }
  /// Tiles of the step, within the held rows; rows of the rotating side are counted from held.begin.
  std::vector<Tile> tiles(Rank rank, int step) const {
    std::vector<Tile> result;
    detail::TileFinder finder;
    find_tiles(rank, step, finder, result);
    return result;
  }
  /// Like tiles(), but replaces the contents of `tiles` and reuses storage.
  void find_tiles(Rank rank, int step, detail::TileFinder& finder, std::vector<Tile>& tiles) const;

  /// Runs of the global positions of the rank's rows; not the document ids that Operands calls query_segments.
  std::vector<Segment> const& query_segments(Rank rank) const {
    return query_segments_[static_cast<std::size_t>(rank)];
  }
  /// The same for the keys.
  std::vector<Segment> const& key_segments(Rank rank) const { return key_segments_[static_cast<std::size_t>(rank)]; }
  Index global_queries() const { return total(request_.query_lengths); }  ///< of all ranks
  Index global_keys() const { return total(request_.key_lengths); }       ///< of all ranks
  /// Number of local rows of the side that travels, and of the side that stays.
  Index rotating_rows(Rank rank) const { return rotating_lengths()[static_cast<std::size_t>(rank)]; }
  /// Number of local rows of the side that stays.
  Index resident_rows(Rank rank) const { return rotation_ == Rotation::keys ? local_queries(rank) : local_keys(rank); }

  /// Parts of a row that travels ahead of the compute of a step.
  PayloadLayout const& prefetched_layout() const { return prefetched_; }
  /// Parts of a row that travels after the compute of a step.
  PayloadLayout const& carried_layout() const { return carried_; }
  /// Parts of a row of sums that stays with its rank.
  PayloadLayout const& resident_layout() const { return resident_; }
  /// Backward: delta = rowsum(dout * output) per query; dbias; gradients of sink logits, a row per rank and their sum.
  PayloadLayout delta_layout() const {
    return {{{Part::delta, request_.shape.batch, request_.shape.query_heads, 1, request_.accumulator_bytes}}};
  }
  /// Backward: dbias per query.
  PayloadLayout bias_gradient_layout() const {
    return {{{Part::dbias, 1, 1, request_.bias_gradient_elements, request_.accumulator_bytes}}};
  }
  /// Backward: gradients of the sink logits, a row per rank and their sum.
  PayloadLayout sink_gradient_layout() const {
    return {{{Part::dsinks, 1, request_.shape.query_heads, request_.sinks, request_.accumulator_bytes}}, checksums()};
  }
  /// Query rows of a rank.
  Index local_queries(Rank rank) const { return request_.query_lengths[static_cast<std::size_t>(rank)]; }
  /// Key rows of a rank.
  Index local_keys(Rank rank) const { return request_.key_lengths[static_cast<std::size_t>(rank)]; }

  /// One for the rank's own rows; unless the exchange is zero-copy, it alternates with a second one for arriving rows.
  int prefetched_buffers() const { return request_.zero_copy ? 1 : 2; }
  /// Rows that each prefetched buffer can hold; 0: not allocated.
  Index prefetched_rows(Rank rank) const;
  /// Rows of each carried buffer: the owner's, the one of fresh results, a second such one, and the one of arriving
  /// results (zero-copy: a third one of fresh results); 0: not allocated.
  std::array<Index, 4> carried_rows(Rank rank) const;

  /// Bytes that the rank sends, or (zero-copy) that others read from it, in the whole pass, excluding checksums and the
  /// small records that validate a call.
  Index bytes_sent(Rank rank) const;
  /// Bytes of all buffers of the pass: payloads, running state or gradients in accumulator precision, delta.
  Index peak_buffer_bytes(Rank rank) const;
  /// Multiply-adds of a rank in the whole pass.
  Index multiply_adds(Rank rank) const;
  /// Sum of bytes_sent over the ranks.
  Index total_bytes_sent() const;
  /// Largest work of a rank divided by the mean: 1 is perfect balance.
  double imbalance() const;
  /// The same if ranks wait for each other in every step: the largest work of each step, summed, divided by the mean
  /// work of a rank. Queries that one rank holds visit the ranks one after another, so it is the number of ranks then.
  double step_imbalance() const;

 private:
  Rank wrap(int place) const { return detail::rank_at(place, ranks()); }
  static Index total(std::vector<Index> const& lengths) {
    Index sum = 0;
    for (Index length : lengths) sum += length;
    return sum;
  }
  std::vector<Index> const& rotating_lengths() const {
    return rotation_ == Rotation::keys ? request_.key_lengths : request_.query_lengths;
  }
  RowRange whole(Rank owner) const { return {0, rotating_rows(owner)}; }
  detail::Need const& need(Rank visitor, Rank owner) const {
    bool const keys = rotation_ == Rotation::keys;
    return needs_[static_cast<std::size_t>((keys ? visitor : owner) * ranks() + (keys ? owner : visitor))];
  }
  RowRange needed_rows(Rank visitor, Rank owner) const {
    return rotation_ == Rotation::keys ? need(visitor, owner).keys : need(visitor, owner).queries;
  }
  detail::Need pair(Rank queries, Rank keys, detail::TileFinder& finder, std::vector<Tile>* tiles) const {
    return finder.find(query_segments(queries), key_segments(keys), request_.rules.mask,
                       request_.rules.query_offset.value_or(0), request_.elementwise, tiles);
  }
  /// One for every rank that reads a buffer, and at least one for sending and one for receiving.
  Index checksums() const { return request_.checked ? std::max(2, ranks()) : 0; }
  void check_sizes() const;
  void build(Rotation rotation);
  void find_layouts();
  RowRange held_rows(Rank owner, int step) const;

  PlanRequest request_;
  Rotation rotation_ = Rotation::keys;
  std::vector<std::vector<Segment>> query_segments_, key_segments_;
  std::vector<detail::Need> needs_;  ///< [rank of the queries, rank of the keys]
  std::vector<int> offsets_;
  bool direct_ = false;
  std::vector<PlannedStep> planned_;
  PayloadLayout prefetched_, carried_, resident_;
};

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE RingPlan::RingPlan(PlanRequest request) : request_(std::move(request)) {
  detail::check<ShapeError>(
      !request_.query_lengths.empty() && request_.query_lengths.size() == request_.key_lengths.size(),
      "plan: query lengths of ", request_.query_lengths.size(), " ranks and key lengths of ",
      request_.key_lengths.size(), "; both need one per rank");
  detail::check<UnsupportedError>(
      !(request_.bound_to_queries && request_.rotation == Rotation::queries),
      "rotation of queries with a bias or boolean mask: their rows cover all keys and stay with the "
      "queries; accepted: Rotation::keys or Rotation::automatic");
  check_sizes();
  for (Rank r = 0; r < ranks(); ++r) {
    query_segments_.push_back(request_.sharding.segments(Side::query, r, request_.query_lengths));
    key_segments_.push_back(request_.sharding.segments(Side::key, r, request_.key_lengths));
  }
  detail::TileFinder finder;
  for (Rank queries = 0; queries < ranks(); ++queries)
    for (Rank keys = 0; keys < ranks(); ++keys) needs_.push_back(pair(queries, keys, finder, nullptr));
  build(request_.rotation == Rotation::queries ? Rotation::queries : Rotation::keys);
  if (request_.rotation == Rotation::automatic && !request_.bound_to_queries && ranks() > 1) {
    RingPlan other = *this;
    other.build(Rotation::queries);
    if (other.total_bytes_sent() < total_bytes_sent()) *this = std::move(other);
  }
}

/// Throws ShapeError if positions, pairs of a step, or bytes of a buffer or of all messages overflow. All sums and
/// products of the plan, except those of the work, are below the limits checked here. Negative lengths are rejected by
/// the sharding.
ANNULUS_INLINE void RingPlan::check_sizes() const {
  AttentionShape const& s = request_.shape;
  Index rows = 1, positions = 0;
  for (auto const* lengths : {&request_.query_lengths, &request_.key_lengths}) {
    Index sum = 0;
    for (Index length : *lengths) {
      rows = std::max(rows, length);
      sum = detail::saturating_sum(sum, length);
    }
    positions = std::max(positions, sum);
  }
  detail::check<ShapeError>(positions < unbounded / 4, "plan: ", positions, " positions in all; accepted: fewer than ",
                            unbounded / 4);
  Index const queries = *std::max_element(request_.query_lengths.begin(), request_.query_lengths.end());
  Index const keys = *std::max_element(request_.key_lengths.begin(), request_.key_lengths.end());
  detail::check<ShapeError>(detail::saturating_product(queries, keys) < detail::largest_index, "plan: a step of ",
                            queries, " queries and ", keys, " keys; accepted: fewer than ", detail::largest_index,
                            " pairs");
  // The widest row of any payload: a query with its dout and at most four scalars. Extents of 0 count as 1, because
  // the other ones are multiplied, too. In a pass every position visits each rank once at most.
  auto const product = [](Index first, auto... others) {
    ((first = detail::saturating_product(first, others)), ...);
    return first;
  };
  Index const heads = product(std::max<Index>(s.batch, 1), std::max({s.query_heads, s.kv_heads, Index{1}}));
  Index const width = detail::saturating_sum(detail::saturating_sum(s.head_dim, s.value_dim), 4);
  Index const bytes = std::max({request_.element_bytes, request_.accumulator_bytes, request_.lse_bytes});
  Index const largest = std::max({product(heads, width, bytes, std::max<Index>(positions, 1), ranks()),
                                  product(request_.bias_gradient_elements, bytes, rows),
                                  product(heads, request_.sinks, bytes, ranks(), Index{ranks()} + 1)});
  detail::check<ShapeError>(largest < detail::largest_index / 32, "plan: batch ", s.batch, ", ", s.query_heads,
                            " query heads, ", s.kv_heads, " kv heads, head_dim ", s.head_dim, ", value_dim ",
                            s.value_dim, ", ", request_.sinks, " sink logits per head, ", positions, " positions and ",
                            rows, " rows of a rank, on ", ranks(), " ranks, make ", largest,
                            " bytes or more; accepted: fewer than ", detail::largest_index / 32);
}

ANNULUS_INLINE void RingPlan::find_layouts() {
  AttentionShape const& s = request_.shape;
  Index const e = request_.element_bytes, a = request_.accumulator_bytes, l = request_.lse_bytes;
  auto const of_queries = [&](Part part, Index dim, Index bytes) {
    return PartLayout{part, s.batch, s.query_heads, dim, bytes};
  };
  auto const of_keys = [&](Part part, Index dim, Index bytes) {
    return PartLayout{part, s.batch, s.kv_heads, dim, bytes};
  };
  PayloadLayout const none, keys{{of_keys(Part::k, s.head_dim, e), of_keys(Part::v, s.value_dim, e)}};
  PayloadLayout const state{
      {of_queries(Part::accumulator, s.value_dim, a), of_queries(Part::maximum, 1, a), of_queries(Part::sum, 1, a)}};
  PayloadLayout const query_gradient{{of_queries(Part::dq, s.head_dim, a)}};
  PayloadLayout const key_gradients{{of_keys(Part::dk, s.head_dim, a), of_keys(Part::dv, s.value_dim, a)}};
  PayloadLayout queries{{of_queries(Part::q, s.head_dim, e)}};
  bool const forward = request_.pass == Pass::forward, keys_rotate = rotation_ == Rotation::keys;
  if (!forward)
    for (PartLayout const& part : {of_queries(Part::dout, s.value_dim, e), of_queries(Part::lse, 1, l),
                                   of_queries(Part::lse_remainder, 1, l), of_queries(Part::delta, 1, a)})
      queries.parts.push_back(part);
  prefetched_ = keys_rotate ? keys : queries;
  carried_ = keys_rotate ? (forward ? none : key_gradients) : (forward ? state : query_gradient);
  resident_ = keys_rotate ? (forward ? state : query_gradient) : (forward ? none : key_gradients);
  if (request_.segments) prefetched_.parts.push_back({Part::document_ids, s.batch, 1, 1, 4});
  prefetched_.checksums = carried_.checksums = checksums();
}

ANNULUS_INLINE RowRange RingPlan::held_rows(Rank owner, int step) const {
  if (step == 0 || !direct_) return whole(owner);
  RowRange rows;
  for (int later = step; later < steps(); ++later)
    rows = detail::hull(rows, needed_rows(wrap(owner + offset(later)), owner));
  return rows;
}

ANNULUS_INLINE void RingPlan::build(Rotation rotation) {
  rotation_ = rotation;
  find_layouts();
  offsets_ = {0};
  for (int offset = 1; offset < ranks(); ++offset)
    for (Rank owner = 0; owner < ranks(); ++owner)
      if (need(wrap(owner + offset), owner).visible_pairs > 0) {
        offsets_.push_back(offset);
        break;
      }
  direct_ = request_.rules.mask.local();

  AttentionShape const& s = request_.shape;
  Index const per_pair = s.batch * s.query_heads *
                         (request_.pass == Pass::forward ? s.head_dim + s.value_dim : 3 * s.head_dim + 2 * s.value_dim);
  planned_.clear();
  for (Rank rank = 0; rank < ranks(); ++rank)
    for (int i = 0; i < steps(); ++i) {
      PlannedStep planned;
      planned.owner = owner(rank, i);
      planned.visible_pairs = need(rank, planned.owner).visible_pairs;
      planned.multiply_adds = detail::saturating_product(planned.visible_pairs, per_pair);
      planned.held = held_rows(planned.owner, i);
      if (i + 1 < steps()) planned.sent = held_rows(planned.owner, i + 1);
      bool const carries = !carried_.empty() && carried_hop(i) > 0;
      if (carries && direct_) {
        planned.carried = needed_rows(rank, planned.owner);
        planned.arriving = needed_rows(wrap(rank + offset(i)), rank);
      } else if (carries) {
        planned.carried = whole(planned.owner);
        planned.arriving = whole(owner(wrap(rank - carried_hop(i)), i));
      }
      planned.prefetched_bytes = planned.sent.size() * prefetched_.bytes_per_row();
      planned.carried_bytes = planned.carried.size() * carried_.bytes_per_row();
      planned_.push_back(planned);
    }
}

ANNULUS_INLINE void RingPlan::find_tiles(Rank rank, int step, detail::TileFinder& finder,
                                         std::vector<Tile>& tiles) const {
  PlannedStep const& planned = this->step(rank, step);
  bool const keys = rotation_ == Rotation::keys;
  pair(keys ? rank : planned.owner, keys ? planned.owner : rank, finder, &tiles);
  for (Tile& tile : tiles) {
    tile = keys ? tile.with_keys(planned.held) : tile.with_queries(planned.held);
    (keys ? tile.key_begin : tile.query_begin) -= planned.held.begin;
  }
}

ANNULUS_INLINE Index RingPlan::prefetched_rows(Rank rank) const {
  if (request_.zero_copy) return step(rank, 0).sent.size();
  Index rows = 0;
  for (int i = 0; i + 1 < steps(); ++i)
    rows = std::max({rows, step(rank, i).sent.size(), step(rank, i + 1).held.size()});
  return rows;
}

ANNULUS_INLINE std::array<Index, 4> RingPlan::carried_rows(Rank rank) const {
  if (carried_.empty()) return {};
  if (steps() == 1) return {rotating_rows(rank), 0, 0, 0};
  Index fresh = 0, arriving = 0;
  for (int i = 0; i < steps(); ++i) {
    fresh = std::max(fresh, step(rank, i).held.size() * (direct_ && i == 0 ? 0 : 1));
    arriving = std::max(arriving, step(rank, i).arriving.size());
  }
  int const departures = direct_ ? steps() - 1 : steps();
  if (request_.zero_copy) arriving = departures > 2 ? fresh : 0;
  return {direct_ ? rotating_rows(rank) : 0, fresh, departures > 1 ? fresh : 0, arriving};
}

ANNULUS_INLINE Index RingPlan::bytes_sent(Rank rank) const {
  Index bytes = 0;
  for (int i = 0; i < steps(); ++i) bytes += step(rank, i).prefetched_bytes + step(rank, i).carried_bytes;
  if (request_.pass == Pass::backward) bytes += (ranks() - 1) * sink_gradient_layout().bytes_per_row();
  return bytes;
}

ANNULUS_INLINE Index RingPlan::peak_buffer_bytes(Rank rank) const {
  Index bytes = prefetched_buffers() * prefetched_.buffer_bytes(prefetched_rows(rank)) +
                resident_.buffer_bytes(resident_rows(rank));
  for (Index rows : carried_rows(rank)) bytes += carried_.buffer_bytes(rows);
  if (request_.pass == Pass::backward)
    bytes += delta_layout().buffer_bytes(local_queries(rank)) +
             bias_gradient_layout().buffer_bytes(local_queries(rank)) +
             sink_gradient_layout().buffer_bytes(ranks() + 1);
  return bytes;
}

ANNULUS_INLINE Index RingPlan::multiply_adds(Rank rank) const {
  Index sum = 0;
  for (int i = 0; i < steps(); ++i) sum = detail::saturating_sum(sum, step(rank, i).multiply_adds);
  return sum;
}

ANNULUS_INLINE Index RingPlan::total_bytes_sent() const {
  Index sum = 0;
  for (Rank r = 0; r < ranks(); ++r) sum += bytes_sent(r);
  return sum;
}

ANNULUS_INLINE double RingPlan::imbalance() const {
  double largest = 0, sum = 0;
  for (Rank r = 0; r < ranks(); ++r) {
    largest = std::max(largest, static_cast<double>(multiply_adds(r)));
    sum += static_cast<double>(multiply_adds(r));
  }
  return sum == 0 ? 1 : largest * ranks() / sum;
}

ANNULUS_INLINE double RingPlan::step_imbalance() const {
  double slowest = 0, sum = 0;
  for (int i = 0; i < steps(); ++i) {
    Index largest = 0;
    for (Rank r = 0; r < ranks(); ++r) {
      largest = std::max(largest, step(r, i).multiply_adds);
      sum += static_cast<double>(step(r, i).multiply_adds);
    }
    slowest += static_cast<double>(largest);
  }
  return sum == 0 ? 1 : slowest * ranks() / sum;
}

#endif

}  // namespace annulus
