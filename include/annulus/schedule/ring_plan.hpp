#pragma once
// Ring plan: the steps of one pass, the rows that each rank sends, its work and its memory. A plan needs no data, and
// every rank computes the same plan from the same request.

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/index.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/schedule/plan_request.hpp"
#include "annulus/schedule/rank_groups.hpp"
#include "annulus/schedule/transport.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus {

struct Rates;
struct PlanEstimate;
/// One step of one rank, which works on rows of `owner`. Row ranges count the rows that the owner works on.
/// In both directions: owner and rows of the lane that travels forwards, work and bytes of both lanes.
struct PlannedStep {
  Rank owner = 0;           ///< rank whose rows are here
  Index visible_pairs = 0;  ///< per batch item and query head; an upper bound where pairs are tested
  Index multiply_adds = 0;  ///< of all batch items and heads; joint keys are part of step 0; saturates
  RowRange held{};          ///< rows of the owner that the rank holds
  RowRange sent{};          ///< those of them that the prefetched shift of this step sends
  RowRange carried{};       ///< rows whose results the carried shift of this step sends
  RowRange arriving{};      ///< rows whose results the carried shift of this step receives
  /// Sent by the prefetched shift, or (zero-copy) of this rank's rows that another one reads.
  Index prefetched_bytes = 0;
  Index carried_bytes = 0;  ///< sent by the carried shift
};

/// The plan of one pass for all ranks.
class RingPlan {
 public:
  /// Throws ShapeError for lengths that do not fit the sharding or the block mask and for sizes that overflow, and
  /// UnsupportedError where queries are to rotate with an operand that is bound to them, and for groups or rules that
  /// the schedule does not accept.
  explicit RingPlan(PlanRequest request);

  PlanRequest const& request() const { return request_; }                        ///< as given
  Rotation rotation() const { return transport_.rotation; }                      ///< keys or queries, never automatic
  int ranks() const { return static_cast<int>(request_.query_lengths.size()); }  ///< of the ring
  int steps() const { return transport_.steps(); }                               ///< of the pass, the same on all ranks

  /// Groups that exchange rows before the first step and after the last one; of one rank each in schedules without
  /// groups.
  RankGroups const& groups() const { return transport_.groups; }
  /// Batch, heads and dims of the rows that a rank works on.
  AttentionShape const& shape() const { return groups().shape(); }
  /// The plans of what a pass exchanges: this plan itself or, in both directions, one for each half of the kv heads or,
  /// if their number is odd, of the rows that travel. Their bytes_sent are those of each direction.
  std::span<RingPlan const> lanes() const { return lanes_.empty() ? std::span(this, 1) : std::span(lanes_); }
  /// Of the heads that a rank of the plan works on, those that the lane is for.
  RowRange kv_heads() const { return kv_heads_; }
  /// The same of the query heads.
  RowRange query_heads() const {
    Index const group = kv_heads_.empty() ? 0 : shape().query_heads / kv_heads_.size();
    return {kv_heads_.begin * group, kv_heads_.end * group};
  }

  /// At step i rank r works on rows of the owner from which offset(i) leads to r: offset(i) ranks back, modulo ranks,
  /// or so many groups and places back on a double ring. The first offset is 0: its own rows.
  int offset(int step) const { return transport_.offset(step); }
  Rank owner(Rank rank, int step) const { return ranks_from().backward(rank, offset(step)); }  ///< of the rows here
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
  Index global_queries() const { return request_.rows(Side::query); }  ///< of all ranks
  Index global_keys() const { return request_.rows(Side::key); }       ///< of all ranks
  /// Query rows of a rank.
  Index local_queries(Rank rank) const { return request_.query_lengths[static_cast<std::size_t>(rank)]; }
  /// Key rows of a rank.
  Index local_keys(Rank rank) const { return request_.key_lengths[static_cast<std::size_t>(rank)]; }
  /// Rows that the rank works on, its own or those of its group, of the side that travels: all, or the half of a lane.
  RowRange rotating_rows(Rank rank) const { return transport_.rotating_rows(rank); }
  /// Number of those rows of the side that stays.
  Index resident_rows(Rank rank) const { return groups().rows(transport_.resident_side(), rank); }

  /// Bytes that the rank sends, or (zero-copy) that others read from it, in the whole pass, excluding checksums and the
  /// small records that validate a call.
  Index bytes_sent(Rank rank) const;
  /// Sum of bytes_sent over the ranks.
  Index total_bytes_sent() const;
  /// Bytes of all buffers of the pass: payloads, running state or gradients in accumulator precision, delta.
  Index peak_buffer_bytes(Rank rank) const;
  /// Bytes of the tensors that the rank passes to the pass: q, k, v and optional operands, backward also dout and the
  /// results of the forward pass. A document id counts as 4 bytes.
  Index operand_bytes(Rank rank) const;
  /// Bytes of the tensors that the pass returns on the rank: output, lse and its remainder; or the gradients.
  Index result_bytes(Rank rank) const;
  /// What the rank needs in all: operands, results and buffers.
  Index memory_bytes(Rank rank) const { return operand_bytes(rank) + result_bytes(rank) + peak_buffer_bytes(rank); }
  /// Multiply-adds of a rank in the whole pass; the largest Index where there are more.
  Index multiply_adds(Rank rank) const;
  /// Largest work of a rank divided by the mean: 1 is perfect balance.
  double imbalance() const;
  /// The same if ranks wait for each other in every step: the largest work of each step, summed, divided by the mean
  /// work of a rank. Queries that one rank holds visit the ranks one after another, so it is the number of ranks then.
  double step_imbalance() const;
  /// Time of each step and of the pass on ranks and links of these rates (schedule/estimate.hpp). Throws
  /// UnsupportedError for rates that cannot be.
  PlanEstimate estimate(Rates const& rates) const;

  /// For the builders of actions and the passes: how rows and sums travel.
  detail::Transport const& transport() const { return transport_; }

 private:
  detail::RankOffsets const& ranks_from() const { return transport_.rank_offsets; }
  std::size_t index_of(Rank visitor, Rank owner) const {
    auto const [queries, keys] = transport_.by_side(visitor, owner);
    return static_cast<std::size_t>(queries * ranks() + keys);
  }
  detail::Need const& need(Rank visitor, Rank owner) const { return needs_[index_of(visitor, owner)]; }
  RowRange needed_rows(Rank visitor, Rank owner) const {
    detail::Need const& need = this->need(visitor, owner);
    RowRange const rows =
        detail::intersection(transport_.keys_rotate() ? need.keys : need.queries, rotating_rows(owner));
    return rows.empty() ? RowRange{} : rows;
  }
  detail::Need pair(Rank queries, Rank keys, detail::TileFinder& finder, std::vector<Tile>* tiles) const {
    return finder.find(query_segments(queries), key_segments(keys), request_.rules.mask,
                       request_.rules.query_offset.value_or(0), request_.elementwise, tiles, request_.rules.block_mask);
  }
  void choose_rotation(int group_size);
  void build(int group_size, Rotation rotation);
  std::vector<Segment> segments_of(Side side, Rank rank) const;
  void find_pairs();
  void find_offsets();
  void find_leaves(detail::LeafSchedule* first = nullptr);
  RowRange held_rows(Rank owner, int step) const;
  PlannedStep planned_step(Rank rank, int step) const;
  void find_steps();
  std::vector<RowRange> halves_of_rows(bool second) const;
  void split_into_lanes();

  PlanRequest request_;
  detail::Transport transport_;
  std::vector<std::vector<Segment>> query_segments_, key_segments_;
  std::vector<detail::Need> needs_;  ///< [rank of the queries, rank of the keys]
  std::vector<Index> visible_;       ///< pairs that the documents leave, if known; as needs_
  RowRange kv_heads_{};
  std::vector<PlannedStep> planned_;
  std::vector<RingPlan> lanes_;  ///< empty unless rows travel in both directions
};

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE RingPlan::RingPlan(PlanRequest request) : request_(std::move(request)) {
  request_.ranks_per_group = request_.group.merged(request_.ranks_per_group);
  request_.document_ids = request_.segments.merged(request_.document_ids);
  detail::check_request(request_);
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

ANNULUS_INLINE void RingPlan::build(int group_size, Rotation rotation) {
  transport_.rotation = rotation;
  if (RankGroups groups(request_, group_size, rotation); groups != transport_.groups) {
    transport_.groups = std::move(groups);
    find_pairs();
  }
  find_offsets();
  transport_.set_layouts(request_, global_keys());
  find_leaves();
  transport_.direct = request_.rules.mask.local() || request_.rules.block_mask || transport_.leaves;
  find_steps();
}

/// The positions of the rows that the rank works on.
ANNULUS_INLINE std::vector<Segment> RingPlan::segments_of(Side side, Rank rank) const {
  std::vector<Index> const& lengths = request_.lengths(side);
  if (!groups().gathers(side)) {
    std::vector<Segment> own = request_.sharding.segments(side, rank, lengths);
    if (side != transport_.rotating_side() || !transport_.halves_rows()) return own;
    return detail::segments_between(own, rotating_rows(rank).begin, rotating_rows(rank).end);
  }
  std::vector<Segment> all;
  for (int place = 0; place < groups().size(); ++place)
    for (Segment const& own : request_.sharding.segments(side, groups().member(rank, place), lengths))
      detail::append_segment(all, own.length, own.global_begin, own.global_stride);
  return all;
}

/// Finds the pairs of rows that the ranks of a ring work on; ranks of different rings share none.
ANNULUS_INLINE void RingPlan::find_pairs() {
  query_segments_.clear();
  key_segments_.clear();
  needs_.clear();
  for (Rank r = 0; r < ranks(); ++r) {
    query_segments_.push_back(segments_of(Side::query, r));
    key_segments_.push_back(segments_of(Side::key, r));
  }
  detail::TileFinder finder;
  for (Rank queries = 0; queries < ranks(); ++queries)
    for (Rank keys = 0; keys < ranks(); ++keys)
      needs_.push_back(groups().place(queries) == groups().place(keys) ? pair(queries, keys, finder, nullptr)
                                                                       : detail::Need{});
  if (request_.documents.empty()) return;
  detail::require_disjoint("plan", request_.documents,
                           std::max(global_keys(), global_queries() + request_.rules.query_offset.value_or(0)));
  visible_ = detail::pairs_in_documents(request_.documents, query_segments_, key_segments_, request_.rules,
                                        request_.elementwise);
}

/// The offsets at which any rank needs rows, in the order of the steps. Rows leave a group from the place in it where
/// their inner ring ends, and start there in the next one.
ANNULUS_INLINE void RingPlan::find_offsets() {
  int const inner = request_.schedule == Schedule::double_ring ? request_.ranks_per_group : ranks();
  transport_.rank_offsets = {ranks(), inner};
  transport_.offsets = {0};
  for (int i = groups().size(); i < ranks(); i += groups().size()) {
    int const group = i / inner, offset = group * inner + (i + group * (inner - 1)) % inner;
    bool needed = false;
    for (Rank owner = 0; owner < ranks(); ++owner)
      needed = needed || need(ranks_from().forward(owner, offset), owner).visible_pairs > 0;
    if (needed) transport_.offsets.push_back(offset);
  }
}

/// Cuts a reproducible pass into leaves: whole leaves travel, and for each row all partial results that a rank has.
/// `first`: of the first lane, whose sums that stay this lane adds to.
ANNULUS_INLINE void RingPlan::find_leaves(detail::LeafSchedule* first) {
  if (!request_.rules.reproducible) return;
  detail::Transport& t = transport_;
  auto grid = t.leaves ? t.leaves->shared_grid()
                       : std::make_shared<detail::LeafGrid const>(query_segments_, key_segments_, request_.rules,
                                                                  request_.elementwise);
  grid->widen_to_leaves(needs_, ranks());
  t.leaves.emplace(std::move(grid), t.keys_rotate(), !t.resident.empty(), !t.carried.empty(), t.offsets, ranks(),
                   t.halves, first);
  for (PartLayout& part : t.carried.parts) part.batch *= t.leaves->nodes_sent();
}

/// Rows of `owner` that are held in a step: those that this step or a later one needs.
ANNULUS_INLINE RowRange RingPlan::held_rows(Rank owner, int step) const {
  if (step == 0 || !transport_.direct) return rotating_rows(owner);
  RowRange rows;
  for (int later = step; later < steps(); ++later)
    rows = detail::hull(rows, needed_rows(ranks_from().forward(owner, offset(later)), owner));
  return rows;
}

ANNULUS_INLINE PlannedStep RingPlan::planned_step(Rank rank, int step) const {
  AttentionShape const& s = shape();
  detail::Transport const& t = transport_;
  bool const last = step + 1 == steps();
  PlannedStep planned;
  planned.owner = owner(rank, step);
  planned.visible_pairs =
      visible_.empty() ? need(rank, planned.owner).visible_pairs : visible_[index_of(rank, planned.owner)];
  Index const joint_pairs = step == 0 ? request_.joint_keys * t.joint_queries(rank).size() : 0;
  Index const per_pair = request_.pass == Pass::forward ? s.head_dim + s.value_dim : 3 * s.head_dim + 2 * s.value_dim;
  planned.multiply_adds = detail::saturating_product(detail::saturating_sum(planned.visible_pairs, joint_pairs),
                                                     s.batch * s.query_heads * per_pair);
  planned.held = held_rows(planned.owner, step);
  if (!last) planned.sent = held_rows(planned.owner, step + 1);
  bool const carries = t.carried_hop(step) != 0;
  if (carries && t.direct) {
    planned.carried = needed_rows(rank, planned.owner);
    planned.arriving = needed_rows(ranks_from().forward(rank, offset(step)), rank);
  } else if (carries) {
    planned.carried = rotating_rows(planned.owner);
    planned.arriving = rotating_rows(owner(ranks_from().backward(rank, t.carried_hop(step)), step));
  }
  // By zero-copy exchange another rank reads rows of this one.
  Index const leaving = request_.zero_copy && !last ? held_rows(rank, step + 1).size() : planned.sent.size();
  planned.prefetched_bytes = leaving * t.prefetched.bytes_per_row();
  planned.carried_bytes = planned.carried.size() * t.carried.bytes_per_row();
  return planned;
}

ANNULUS_INLINE void RingPlan::find_steps() {
  planned_.clear();
  for (Rank rank = 0; rank < ranks(); ++rank)
    for (int i = 0; i < steps(); ++i) planned_.push_back(planned_step(rank, i));
}

/// Half of the rows of each rank that travel, the larger ones first; halves of a reproducible pass consist of whole
/// leaves.
ANNULUS_INLINE std::vector<RowRange> RingPlan::halves_of_rows(bool second) const {
  std::vector<RowRange> halves;
  auto const& leaves = transport_.leaves;
  for (Rank rank = 0; rank < ranks(); ++rank) {
    Index const rows = rotating_rows(rank).size(), middle = detail::ceil_divide(rows, Index{2});
    Index const cut = leaves ? leaves->grid().nearest_end(transport_.rotating_side(), rank, middle) : middle;
    halves.push_back(second ? RowRange{cut, rows} : RowRange{0, cut});
  }
  return halves;
}

/// Makes the lanes of both directions. Both make all steps of the plan, as they are rotated together.
ANNULUS_INLINE void RingPlan::split_into_lanes() {
  Index const heads = request_.shape.kv_heads;
  bool const halves_heads = detail::halves_kv_heads(heads);
  std::vector<RingPlan> lanes(2, *this);
  for (RingPlan& lane : lanes) {
    detail::Transport& t = lane.transport_;
    t.backwards = &lane != &lanes[0];
    lane.request_.schedule = Schedule::ring;
    if (t.backwards) std::reverse(t.offsets.begin() + 1, t.offsets.end());
    if (halves_heads) {
      lane.kv_heads_ = t.backwards ? RowRange{heads / 2, heads} : RowRange{0, heads / 2};
      lane.request_.shape.kv_heads /= 2;
      lane.request_.shape.query_heads /= 2;
      if (t.backwards) lane.request_.bias_gradient_elements = 0;  // The first lane has the sums of all heads.
      t.groups = RankGroups(lane.request_, 1, rotation());
    } else {
      t.halves = halves_of_rows(t.backwards);
      lane.find_pairs();
    }
    t.set_layouts(lane.request_, global_keys());
    lane.find_leaves(t.shares_buffers() && t.leaves ? &*lanes[0].transport_.leaves : nullptr);
    lane.find_steps();
  }
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    PlannedStep &both = planned_[i], &second = lanes[1].planned_[i];
    Index const pairs = halves_heads ? 0 : second.visible_pairs;
    both = lanes[0].planned_[i];
    both.visible_pairs += pairs;
    both.multiply_adds = detail::saturating_sum(both.multiply_adds, second.multiply_adds);
    both.prefetched_bytes += second.prefetched_bytes;
    both.carried_bytes += second.carried_bytes;
  }
  lanes_ = std::move(lanes);
}

ANNULUS_INLINE void RingPlan::find_tiles(Rank rank, int step, detail::TileFinder& finder,
                                         std::vector<Tile>& tiles) const {
  if (!lanes_.empty()) return lanes_[0].find_tiles(rank, step, finder, tiles);
  PlannedStep const& planned = this->step(rank, step);
  bool const keys = transport_.keys_rotate();
  auto const ranks = transport_.by_side(rank, planned.owner);
  pair(ranks.queries, ranks.keys, finder, &tiles);
  for (Tile& tile : tiles) {
    tile = keys ? tile.with_keys(planned.held) : tile.with_queries(planned.held);
    (keys ? tile.key_begin : tile.query_begin) -= planned.held.begin;
  }
}

ANNULUS_INLINE Index RingPlan::bytes_sent(Rank rank) const {
  Index bytes = 0;
  for (RingPlan const& lane : lanes_) bytes += lane.bytes_sent(rank);
  if (!lanes_.empty()) return bytes;
  detail::Transport const& t = transport_;
  for (int i = 0; i < steps(); ++i) bytes += step(rank, i).prefetched_bytes + step(rank, i).carried_bytes;
  if (t.shares_buffers()) return bytes;
  // All shares but those of the next rank pass through this one.
  Rank const next = detail::rank_at(rank + (t.backwards ? -1 : 1), ranks());
  return bytes + (t.all_sink_rows() - t.sink_rows(next).size()) * t.sink_shares.bytes_per_row() +
         (ranks() - 1) * t.joint_shares.bytes_per_row() + t.bytes_in_group(rank);
}

ANNULUS_INLINE Index RingPlan::total_bytes_sent() const {
  Index sum = 0;
  for (Rank r = 0; r < ranks(); ++r) sum += bytes_sent(r);
  return sum;
}

ANNULUS_INLINE Index RingPlan::multiply_adds(Rank rank) const {
  Index sum = 0;
  for (int i = 0; i < steps(); ++i) sum = detail::saturating_sum(sum, step(rank, i).multiply_adds);
  return sum;
}

/// Time of `rounds` after each of which the ranks wait for each other, relative to that of perfectly balanced ones.
/// work_of(rank, round): of a rank in a round.
template <class WorkOf>
double imbalance_of_rounds(int ranks, int rounds, WorkOf&& work_of) {
  double slowest = 0, sum = 0;
  for (int round = 0; round < rounds; ++round) {
    double largest = 0;
    for (Rank r = 0; r < ranks; ++r) {
      auto const work = static_cast<double>(work_of(r, round));
      largest = std::max(largest, work);
      sum += work;
    }
    slowest += largest;
  }
  return sum == 0 ? 1 : slowest * ranks / sum;
}

ANNULUS_INLINE double RingPlan::imbalance() const {
  return imbalance_of_rounds(ranks(), 1, [&](Rank rank, int) { return multiply_adds(rank); });
}

ANNULUS_INLINE double RingPlan::step_imbalance() const {
  return imbalance_of_rounds(ranks(), steps(), [&](Rank rank, int i) { return step(rank, i).multiply_adds; });
}

#endif

}  // namespace annulus

#if defined(ANNULUS_DEFINITIONS)
#include "annulus/schedule/plan_slots.hpp"
#include "annulus/schedule/plan_tensors.hpp"
#endif
