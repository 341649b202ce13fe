#pragma once
// Ring plan: the steps of one pass, the rows that each rank sends, its work and its memory. A plan needs no data, and
// every rank computes the same plan from the same request.

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/schedule/document_pairs.hpp"
#include "annulus/schedule/leaf_schedule.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/plan_request.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

/// One step of one rank, which works on rows of `owner`. Row ranges count the owner's local rows.
struct PlannedStep {
  Rank owner = 0;              ///< rank whose rows are here
  Index visible_pairs = 0;     ///< per batch item and query head; an upper bound where pairs are tested
  Index multiply_adds = 0;     ///< of all batch items and heads
  RowRange held{};             ///< rows of the owner that the rank holds
  RowRange sent{};             ///< those of them that the prefetched shift of this step sends
  RowRange carried{};          ///< rows whose results the carried shift of this step sends
  RowRange arriving{};         ///< rows whose results the carried shift of this step receives
  Index prefetched_bytes = 0;  ///< sent by the prefetched shift
  Index carried_bytes = 0;     ///< sent by the carried shift
};

struct Rates;
struct PlanEstimate;

/// The plan of one pass for all ranks.
class RingPlan {
 public:
  /// Throws ShapeError for lengths that do not fit the sharding or the block mask and for sizes that overflow, and
  /// UnsupportedError where queries are to rotate with an operand that is bound to them.
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

  /// True if results are sent directly to their owner after each step: only parts of shards travel (local and block
  /// masks), or the owner joins them (reproducible). Otherwise they travel on with their rows and reach the owner with the
  /// last shift.
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
  /// Parts of a row of the results for a rank's own rows; those that travel may have several partial results.
  PayloadLayout own_results_layout() const { return carried_.with_batch(request_.shape.batch); }
  /// Leaf sums of a reproducible pass; null in other passes.
  detail::LeafSchedule const* leaves() const { return leaves_ ? &*leaves_ : nullptr; }
  /// Rows of the buffer of sums that stay with their rank.
  Index resident_sum_rows(Rank rank) const {
    return leaves_ ? leaves_->slot_rows(rank, detail::LeafSums::resident) : resident_rows(rank);
  }
  /// Rows of a rank's shares in the gradients of sink logits: one, or (reproducible) one for each leaf of its queries.
  RowRange sink_gradient_rows(Rank rank) const {
    return leaves_ ? leaves_->grid().ordered_by_rank(Side::query, rank) : RowRange{rank, rank + 1};
  }
  /// Rows for the shares of all ranks, and one for their sum.
  Index all_sink_gradient_rows() const { return sink_gradient_rows(ranks() - 1).end + 1; }
  /// Backward: delta = rowsum(dout * output) per query; dbias; gradients of sink logits.
  PayloadLayout delta_layout() const {
    return {{{Part::delta, request_.shape.batch, request_.shape.query_heads, 1, request_.accumulator_bytes}}};
  }
  /// Backward: dbias per query.
  PayloadLayout bias_gradient_layout() const {
    return {{{Part::dbias, 1, 1, request_.bias_gradient_elements, request_.accumulator_bytes}}};
  }
  /// Backward: gradients of the sink logits, a share or their sum.
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
  /// Time of each step and of the pass on ranks and links of these rates (schedule/estimate.hpp). Throws UnsupportedError
  /// for rates that cannot be.
  PlanEstimate estimate(Rates const& rates) const;

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
  std::size_t index_of(Rank visitor, Rank owner) const {
    bool const keys = rotation_ == Rotation::keys;
    return static_cast<std::size_t>((keys ? visitor : owner) * ranks() + (keys ? owner : visitor));
  }
  detail::Need const& need(Rank visitor, Rank owner) const { return needs_[index_of(visitor, owner)]; }
  RowRange needed_rows(Rank visitor, Rank owner) const {
    return rotation_ == Rotation::keys ? need(visitor, owner).keys : need(visitor, owner).queries;
  }
  detail::Need pair(Rank queries, Rank keys, detail::TileFinder& finder, std::vector<Tile>* tiles) const {
    return finder.find(query_segments(queries), key_segments(keys), request_.rules.mask,
                       request_.rules.query_offset.value_or(0), request_.elementwise, tiles, request_.rules.block_mask);
  }
  /// One for every rank that reads a buffer, and at least one for sending and one for receiving.
  Index checksums() const { return request_.checked ? std::max(2, ranks()) : 0; }
  void build(Rotation rotation);
  void find_layouts();
  void find_leaves();
  RowRange held_rows(Rank owner, int step) const;

  PlanRequest request_;
  Rotation rotation_ = Rotation::keys;
  std::vector<std::vector<Segment>> query_segments_, key_segments_;
  std::vector<detail::Need> needs_;  ///< [rank of the queries, rank of the keys]
  std::vector<Index> visible_;       ///< pairs that the documents leave, if known; as needs_
  std::vector<int> offsets_;
  bool direct_ = false;
  std::optional<detail::LeafSchedule> leaves_;
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
  detail::check_sizes(request_);
  for (Rank r = 0; r < ranks(); ++r) {
    query_segments_.push_back(request_.sharding.segments(Side::query, r, request_.query_lengths));
    key_segments_.push_back(request_.sharding.segments(Side::key, r, request_.key_lengths));
  }
  detail::TileFinder finder;
  for (Rank queries = 0; queries < ranks(); ++queries)
    for (Rank keys = 0; keys < ranks(); ++keys) needs_.push_back(pair(queries, keys, finder, nullptr));
  if (!request_.documents.empty())
    visible_ = detail::pairs_in_documents(request_.documents, query_segments_, key_segments_, request_.rules,
                                          request_.elementwise);
  build(request_.rotation == Rotation::queries ? Rotation::queries : Rotation::keys);
  if (request_.rotation == Rotation::automatic && !request_.bound_to_queries && ranks() > 1) {
    RingPlan other = *this;
    other.build(Rotation::queries);
    if (other.total_bytes_sent() < total_bytes_sent()) *this = std::move(other);
  }
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
  find_leaves();
  direct_ = request_.rules.mask.local() || request_.rules.block_mask || leaves_;

  AttentionShape const& s = request_.shape;
  Index const per_pair = s.batch * s.query_heads *
                         (request_.pass == Pass::forward ? s.head_dim + s.value_dim : 3 * s.head_dim + 2 * s.value_dim);
  planned_.clear();
  for (Rank rank = 0; rank < ranks(); ++rank)
    for (int i = 0; i < steps(); ++i) {
      PlannedStep planned;
      planned.owner = owner(rank, i);
      planned.visible_pairs =
          visible_.empty() ? need(rank, planned.owner).visible_pairs : visible_[index_of(rank, planned.owner)];
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

/// Cuts a reproducible pass into leaves: whole leaves travel, and for each row all partial results that a rank has.
ANNULUS_INLINE void RingPlan::find_leaves() {
  if (!request_.rules.reproducible) return;
  auto grid = leaves_ ? leaves_->shared_grid()
                      : std::make_shared<detail::LeafGrid const>(query_segments_, key_segments_, request_.rules,
                                                                 request_.elementwise);
  grid->widen_to_leaves(needs_, ranks());
  leaves_.emplace(std::move(grid), rotation_ == Rotation::keys, !resident_.empty(), !carried_.empty(), offsets_,
                  ranks());
  for (PartLayout& part : carried_.parts) part.batch *= leaves_->nodes_sent();
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
  Index const own = leaves_ ? leaves_->slot_rows(rank, detail::LeafSums::rotating) : rotating_rows(rank);
  if (steps() == 1) return {own, 0, 0, 0};
  Index fresh = 0, arriving = 0;
  for (int i = 0; i < steps(); ++i) {
    fresh = std::max(fresh, step(rank, i).held.size() * (direct_ && i == 0 ? 0 : 1));
    arriving = std::max(arriving, step(rank, i).arriving.size());
  }
  int const departures = direct_ ? steps() - 1 : steps();
  if (request_.zero_copy) arriving = departures > 2 ? fresh : 0;
  return {direct_ ? own : 0, fresh, departures > 1 ? fresh : 0, arriving};
}

ANNULUS_INLINE Index RingPlan::bytes_sent(Rank rank) const {
  Index bytes = 0;
  for (int i = 0; i < steps(); ++i) bytes += step(rank, i).prefetched_bytes + step(rank, i).carried_bytes;
  if (request_.pass == Pass::backward)
    // All shares but those of the next rank pass through this one.
    bytes += (all_sink_gradient_rows() - 1 - sink_gradient_rows(wrap(rank + 1)).size()) *
             sink_gradient_layout().bytes_per_row();
  return bytes;
}

ANNULUS_INLINE Index RingPlan::peak_buffer_bytes(Rank rank) const {
  Index bytes = prefetched_buffers() * prefetched_.buffer_bytes(prefetched_rows(rank)) +
                resident_.buffer_bytes(resident_sum_rows(rank));
  auto const carried = carried_rows(rank);
  for (std::size_t i = 0; i < carried.size(); ++i)
    bytes += (i == 0 ? own_results_layout() : carried_).buffer_bytes(carried[i]);
  if (request_.pass == Pass::backward)
    bytes += delta_layout().buffer_bytes(local_queries(rank)) +
             bias_gradient_layout().buffer_bytes(local_queries(rank)) +
             sink_gradient_layout().buffer_bytes(all_sink_gradient_rows());
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
