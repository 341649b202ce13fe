#pragma once
// Ring plan: the steps of one pass, the rows that each rank sends, its work and its memory. A plan needs no data, and
// every rank computes the same plan from the same request.

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/mask/attention_rules.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/schedule/joint_gradients.hpp"
#include "annulus/schedule/leaf_schedule.hpp"
#include "annulus/schedule/pass_layouts.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/plan_request.hpp"
#include "annulus/schedule/planned_step.hpp"
#include "annulus/schedule/rank_groups.hpp"
#include "annulus/schedule/rank_offsets.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus {

struct Rates;
struct PlanEstimate;
class RingPlan;

namespace detail {

/// Bytes of the slots of a rank: plan_slots.hpp.
Index slot_bytes(RingPlan const& plan, Rank rank);

}  // namespace detail

/// The plan of one pass for all ranks.
class RingPlan {
 public:
  /// Throws ShapeError for lengths that do not fit the sharding or the block mask and for sizes that overflow, and
  /// UnsupportedError where queries are to rotate with an operand that is bound to them, and for groups or rules that
  /// the schedule does not accept.
  explicit RingPlan(PlanRequest request);

  PlanRequest const& request() const { return request_; }                        ///< as given
  Rotation rotation() const { return rotation_; }                                ///< keys or queries, never automatic
  int ranks() const { return static_cast<int>(request_.query_lengths.size()); }  ///< of the ring
  int steps() const { return static_cast<int>(offsets_.size()); }                ///< of the pass, the same on all ranks

  /// Groups that exchange rows before the first step and after the last one; of one rank each in schedules without
  /// groups.
  RankGroups const& groups() const { return groups_; }
  /// What they exchange.
  GroupExchange const& group_exchange() const { return exchange_; }
  /// Batch, heads and dims of the rows that a rank works on.
  AttentionShape const& shape() const { return groups_.shape(); }
  /// The plans of what a pass exchanges: this plan itself or, in both directions, one for each half of the kv heads or,
  /// if their number is odd, of the rows that travel. Their bytes_sent are those of each direction.
  std::span<RingPlan const> lanes() const { return lanes_.empty() ? std::span(this, 1) : std::span(lanes_); }
  bool backwards() const { return backwards_; }        ///< true for the lane whose rows travel to rank r - 1, not r + 1
  bool halves_rows() const { return !rows_.empty(); }  ///< true for the lanes of a plan that halves the rows
  /// True for the second lane of such a plan. What stays with a rank is in the buffers of the first one: sums that
  /// stay, delta, its operands in the wire type, and gradients of the bias, of sink logits and of joint keys.
  bool shares_buffers() const { return halves_rows() && backwards_; }
  /// Of the heads that a rank of the plan works on, those that the lane is for.
  RowRange kv_heads() const { return kv_heads_; }
  /// The same of the query heads.
  RowRange query_heads() const {
    Index const group = kv_heads_.empty() ? 0 : shape().query_heads / kv_heads_.size();
    return {kv_heads_.begin * group, kv_heads_.end * group};
  }

  /// Ranks to which offsets lead: of a double ring, or of a ring, where offset d leads d ranks on, modulo ranks.
  RankOffsets const& rank_offsets() const { return rank_offsets_; }
  /// At step i rank r works on rows of the owner from which offset(i) leads to r. The first offset is 0: its own rows.
  int offset(int step) const { return offsets_[static_cast<std::size_t>(step)]; }
  Rank owner(Rank rank, int step) const { return rank_offsets_.backward(rank, offset(step)); }  ///< of the rows here

  /// Offset of the prefetched shift between step i and i + 1.
  int prefetched_hop(int step) const { return rank_offsets_.between(offset(step), offset(step + 1)); }

  /// True if results are sent directly to their owner after each step: only parts of shards travel (local and block
  /// masks), or the owner joins them (reproducible). Otherwise they travel on with their rows and reach the owner with
  /// the last shift.
  bool carried_direct() const { return direct_; }
  /// Offset of the carried shift after step i; 0: there is none.
  int carried_hop(int step) const {
    if (!direct_ && step + 1 < steps()) return prefetched_hop(step);
    return rank_offsets_.between(offset(step), 0);
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

  /// Runs of the global positions of the rows that the rank works on, its own or those of its group; not the document
  /// ids that Operands calls query_documents.
  std::vector<Segment> const& query_segments(Rank rank) const {
    return query_segments_[static_cast<std::size_t>(rank)];
  }
  /// The same for the keys.
  std::vector<Segment> const& key_segments(Rank rank) const { return key_segments_[static_cast<std::size_t>(rank)]; }
  Index global_queries() const { return total(request_.query_lengths); }  ///< of all ranks
  Index global_keys() const { return total(request_.key_lengths); }       ///< of all ranks
  /// Rows that the rank works on, its own or those of its group, of the side that travels: all, or the half of a lane.
  RowRange rotating_rows(Rank rank) const {
    if (halves_rows()) return rows_[static_cast<std::size_t>(rank)];
    return {0, groups_.rows(rotating_side(), rank)};
  }
  /// Number of those rows of the side that stays.
  Index resident_rows(Rank rank) const {
    return groups_.rows(rotation_ == Rotation::keys ? Side::query : Side::key, rank);
  }

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
  /// The queries whose pairs with joint keys the rank computes, among those that it works on.
  RowRange joint_queries(Rank rank) const {
    if (!halves_rows()) return groups_.joint_queries(rank);
    if (rotation_ == Rotation::queries) return rotating_rows(rank);
    return shares_buffers() ? RowRange{} : groups_.joint_queries(rank);
  }
  /// Rows of the buffer of sums that stay with their rank; see shares_buffers.
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
  /// Backward: dbias per query that the rank works on.
  PayloadLayout bias_gradient_layout() const {
    if (PayloadLayout const& joined = exchange_.after(GroupRows::pairs); !joined.empty()) return joined;
    return {{{Part::dbias, 1, 1, request_.bias_gradient_elements, request_.accumulator_bytes}}};
  }
  /// Backward: gradients of the sink logits, a share or their sum.
  PayloadLayout sink_gradient_layout() const {
    return {{{Part::dsinks, 1, request_.shape.query_heads, request_.sinks, request_.accumulator_bytes}}, checksums()};
  }
  /// Backward: gradients of the joint keys and values.
  detail::JointGradients joint_gradients() const { return {request_, checksums()}; }
  /// Memory for a wire type.
  detail::WireBuffers wire_buffers(Rank rank) const {
    return {request_, groups_, rank, prefetched_, steps_of(rank).subspan(1), !shares_buffers()};
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
  Index multiply_adds(Rank rank) const { return detail::work_of(steps_of(rank)); }
  /// Sum of bytes_sent over the ranks.
  Index total_bytes_sent() const;
  /// Largest work of a rank divided by the mean: 1 is perfect balance.
  double imbalance() const { return detail::imbalance_of(planned_, ranks()); }
  /// The same if ranks wait for each other in every step: the largest work of each step, summed, divided by the mean
  /// work of a rank. Queries that one rank holds visit the ranks one after another, so it is the number of ranks then.
  double step_imbalance() const { return detail::step_imbalance_of(planned_, ranks()); }
  /// Time of each step and of the pass on ranks and links of these rates (schedule/estimate.hpp). Throws
  /// UnsupportedError for rates that cannot be.
  PlanEstimate estimate(Rates const& rates) const;

 private:
  Rank wrap(int place) const { return detail::rank_at(place, ranks()); }
  static Index total(std::vector<Index> const& lengths) {
    Index sum = 0;
    for (Index length : lengths) sum += length;
    return sum;
  }
  std::span<PlannedStep const> steps_of(Rank rank) const { return detail::steps_of(planned_, ranks(), rank); }
  Side rotating_side() const { return rotation_ == Rotation::keys ? Side::key : Side::query; }
  std::size_t index_of(Rank visitor, Rank owner) const {
    bool const keys = rotation_ == Rotation::keys;
    return static_cast<std::size_t>((keys ? visitor : owner) * ranks() + (keys ? owner : visitor));
  }
  detail::Need const& need(Rank visitor, Rank owner) const { return needs_[index_of(visitor, owner)]; }
  RowRange needed_rows(Rank visitor, Rank owner) const {
    detail::Need const& need = this->need(visitor, owner);
    RowRange const rows =
        detail::intersection(rotation_ == Rotation::keys ? need.keys : need.queries, rotating_rows(owner));
    return rows.empty() ? RowRange{} : rows;
  }
  detail::Need pair(Rank queries, Rank keys, detail::TileFinder& finder, std::vector<Tile>* tiles) const {
    return finder.find(query_segments(queries), key_segments(keys), request_.rules.mask,
                       request_.rules.query_offset.value_or(0), request_.elementwise, tiles, request_.rules.block_mask);
  }
  /// One for every rank that reads a buffer, and at least one for sending and one for receiving.
  Index checksums() const { return request_.checked ? std::max(2, ranks()) : 0; }
  void choose_rotation(int group_size);
  void build(int group_size, Rotation rotation);
  void find_pairs();
  void split_into_lanes();
  std::vector<RowRange> halves_of_rows(bool second) const;
  void find_layouts();
  void find_offsets();
  void find_leaves(detail::LeafSchedule* first = nullptr);
  void find_steps();
  RowRange held_rows(Rank owner, int step) const;

  PlanRequest request_;
  Rotation rotation_ = Rotation::keys;
  RankGroups groups_;
  GroupExchange exchange_;
  std::vector<std::vector<Segment>> query_segments_, key_segments_;
  std::vector<detail::Need> needs_;  ///< [rank of the queries, rank of the keys]
  std::vector<Index> visible_;       ///< pairs that the documents leave, if known; as needs_
  RankOffsets rank_offsets_;
  std::vector<int> offsets_;
  bool direct_ = false;
  RowRange kv_heads_{};
  std::vector<RowRange> rows_;  ///< of a lane: the half of each rank's rows; empty: all rows
  bool backwards_ = false;
  std::vector<RingPlan> lanes_;  ///< empty unless rows travel in both directions
  std::optional<detail::LeafSchedule> leaves_;
  std::vector<PlannedStep> planned_;
  PayloadLayout prefetched_, carried_, resident_;
};

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE RingPlan::RingPlan(PlanRequest request) : request_(std::move(request)) {
  request_.ranks_per_group = request_.group.merged(request_.ranks_per_group);
  request_.document_ids = request_.segments.merged(request_.document_ids);
  detail::check<ShapeError>(
      !request_.query_lengths.empty() && request_.query_lengths.size() == request_.key_lengths.size(),
      "plan: query lengths of ", request_.query_lengths.size(), " ranks and key lengths of ",
      request_.key_lengths.size(), "; both need one per rank");
  detail::check<UnsupportedError>(
      !(request_.bound_to_queries && request_.rotation == Rotation::queries),
      "rotation of queries with a bias or boolean mask: their rows cover all keys and stay with the "
      "queries; accepted: Rotation::keys or Rotation::automatic");
  detail::check<UnsupportedError>(
      !(request_.schedule == Schedule::all_gather && request_.rotation != Rotation::automatic), "rotation of ",
      name_of(request_.rotation), " with schedule all_gather, in which no rows rotate; accepted: Rotation::automatic");
  bool const doubled = request_.schedule == Schedule::double_ring;
  detail::check<UnsupportedError>(!(request_.rules.reproducible && (doubled || has_groups(request_.schedule))),
                                  "reproducible with schedule ", name_of(request_.schedule),
                                  ": the order of its sums is planned for the steps of a single ring; accepted: "
                                  "Schedule::ring or Schedule::both_directions");
  detail::check<UnsupportedError>(!(doubled && request_.zero_copy),
                                  "zero-copy exchange with schedule double_ring, in which rows travel by messages; "
                                  "accepted: zero_copy false");
  detail::check_sizes(request_);
  detail::check<UnsupportedError>(request_.wire == Wire::as_stored || request_.element_bytes > 2, "wire ",
                                  name_of(request_.wire), " for operands of ", request_.element_bytes,
                                  " bytes an element; accepted for 4 and 8, or Wire::as_stored");
  std::vector<int> const sizes = detail::group_sizes(request_);
  choose_rotation(sizes.front());
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    RingPlan other = *this;
    other.choose_rotation(sizes[i]);
    if (other.total_bytes_sent() < total_bytes_sent()) *this = std::move(other);
  }
  kv_heads_ = {0, shape().kv_heads};
  if (request_.schedule == Schedule::both_directions) split_into_lanes();
}

ANNULUS_INLINE void RingPlan::choose_rotation(int group_size) {
  if (request_.schedule == Schedule::all_gather) return build(group_size, Rotation::queries);
  build(group_size, request_.rotation == Rotation::queries ? Rotation::queries : Rotation::keys);
  if (request_.rotation == Rotation::automatic && !request_.bound_to_queries && ranks() > 1) {
    RingPlan other = *this;
    other.build(group_size, Rotation::queries);
    if (other.total_bytes_sent() < total_bytes_sent()) *this = std::move(other);
  }
}

#endif

}  // namespace annulus

#if defined(ANNULUS_DEFINITIONS)
#include "annulus/schedule/plan_bytes.hpp"
#include "annulus/schedule/plan_slots.hpp"
#include "annulus/schedule/plan_steps.hpp"
#endif
