#pragma once
// Steps of a plan: the pairs of rows that ranks work on, the offsets at which they meet, the rows that they send, and
// the lanes of both directions.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/schedule/document_pairs.hpp"
#include "annulus/schedule/leaf_schedule.hpp"
#include "annulus/schedule/pass_layouts.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus {

#if defined(ANNULUS_DEFINITIONS)

/// Finds the pairs of rows that the ranks of a ring work on; ranks of different rings share none.
ANNULUS_INLINE void RingPlan::find_pairs() {
  auto const segments_of = [&](Side side, Rank rank) {
    std::vector<Index> const& lengths = side == Side::query ? request_.query_lengths : request_.key_lengths;
    if (!groups_.gathers(side)) {
      std::vector<Segment> own = request_.sharding.segments(side, rank, lengths);
      return side == rotating_side() && halves_rows()
                 ? detail::segments_between(own, rotating_rows(rank).begin, rotating_rows(rank).end)
                 : own;
    }
    std::vector<Segment> all;
    for (int place = 0; place < groups_.size(); ++place)
      for (Segment const& own : request_.sharding.segments(side, groups_.member(rank, place), lengths))
        detail::append_segment(all, own.length, own.global_begin, own.global_stride);
    return all;
  };
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
      needs_.push_back(groups_.place(queries) == groups_.place(keys) ? pair(queries, keys, finder, nullptr)
                                                                     : detail::Need{});
  if (request_.documents.empty()) return;
  detail::require_disjoint("plan", request_.documents,
                           std::max(global_keys(), global_queries() + request_.rules.query_offset.value_or(0)));
  visible_ = detail::pairs_in_documents(request_.documents, query_segments_, key_segments_, request_.rules,
                                        request_.elementwise);
}

ANNULUS_INLINE void RingPlan::find_layouts() {
  detail::RingLayouts const ring = detail::ring_layouts(request_, groups_, rotation_, checksums());
  prefetched_ = ring.prefetched;
  carried_ = ring.carried;
  resident_ = ring.resident;
  exchange_ = detail::group_exchange(request_, groups_, ring, global_keys(), checksums());
}

/// Half of the rows of each rank that travel, the larger ones first; halves of a reproducible pass consist of whole
/// leaves.
ANNULUS_INLINE std::vector<RowRange> RingPlan::halves_of_rows(bool second) const {
  std::vector<RowRange> halves;
  for (Rank rank = 0; rank < ranks(); ++rank) {
    Index const rows = rotating_rows(rank).size(), middle = detail::ceil_divide(rows, Index{2});
    Index const cut = leaves_ ? leaves_->grid().nearest_end(rotating_side(), rank, middle) : middle;
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
    lane.backwards_ = &lane != &lanes[0];
    lane.request_.schedule = Schedule::ring;
    if (lane.backwards_) std::reverse(lane.offsets_.begin() + 1, lane.offsets_.end());
    if (halves_heads) {
      lane.kv_heads_ = lane.backwards_ ? RowRange{heads / 2, heads} : RowRange{0, heads / 2};
      lane.request_.shape.kv_heads /= 2;
      lane.request_.shape.query_heads /= 2;
      if (lane.backwards_) lane.request_.bias_gradient_elements = 0;  // The first lane has the sums of all heads.
      lane.groups_ = RankGroups(lane.request_, 1, rotation_);
    } else {
      lane.rows_ = halves_of_rows(lane.backwards_);
      lane.find_pairs();
    }
    lane.find_layouts();
    lane.find_leaves(lane.shares_buffers() && leaves_ ? &*lanes[0].leaves_ : nullptr);
    lane.find_steps();
  }
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    planned_[i] = lanes[0].planned_[i].with_work_of(lanes[1].planned_[i]);
    if (!halves_heads) planned_[i].visible_pairs += lanes[1].planned_[i].visible_pairs;
  }
  lanes_ = std::move(lanes);
}

ANNULUS_INLINE RowRange RingPlan::held_rows(Rank owner, int step) const {
  if (step == 0 || !direct_) return rotating_rows(owner);
  RowRange rows;
  for (int later = step; later < steps(); ++later)
    rows = detail::hull(rows, needed_rows(rank_offsets_.forward(owner, offset(later)), owner));
  return rows;
}

ANNULUS_INLINE void RingPlan::build(int group_size, Rotation rotation) {
  rotation_ = rotation;
  if (RankGroups groups(request_, group_size, rotation); groups != groups_) {
    groups_ = std::move(groups);
    find_pairs();
  }
  find_layouts();
  find_offsets();
  find_leaves();
  direct_ = request_.rules.mask.local() || request_.rules.block_mask || leaves_;
  find_steps();
}

ANNULUS_INLINE void RingPlan::find_steps() {
  AttentionShape const& s = shape();
  Index const per_pair = s.batch * s.query_heads *
                         (request_.pass == Pass::forward ? s.head_dim + s.value_dim : 3 * s.head_dim + 2 * s.value_dim);
  planned_.clear();
  for (Rank rank = 0; rank < ranks(); ++rank)
    for (int i = 0; i < steps(); ++i) {
      PlannedStep planned;
      planned.owner = owner(rank, i);
      planned.visible_pairs =
          visible_.empty() ? need(rank, planned.owner).visible_pairs : visible_[index_of(rank, planned.owner)];
      Index const joint_pairs = i == 0 ? request_.joint_keys * joint_queries(rank).size() : 0;
      planned.multiply_adds =
          detail::saturating_product(detail::saturating_sum(planned.visible_pairs, joint_pairs), per_pair);
      planned.held = held_rows(planned.owner, i);
      if (i + 1 < steps()) planned.sent = held_rows(planned.owner, i + 1);
      bool const carries = !carried_.empty() && carried_hop(i) > 0;
      if (carries && direct_) {
        planned.carried = needed_rows(rank, planned.owner);
        planned.arriving = needed_rows(rank_offsets_.forward(rank, offset(i)), rank);
      } else if (carries) {
        planned.carried = rotating_rows(planned.owner);
        planned.arriving = rotating_rows(owner(rank_offsets_.backward(rank, carried_hop(i)), i));
      }
      // By zero-copy exchange another rank reads rows of this one.
      bool const shows = request_.zero_copy && i + 1 < steps();
      Index const leaving = shows ? held_rows(rank, i + 1).size() : planned.sent.size();
      planned.prefetched_bytes = leaving * prefetched_.bytes_per_row();
      planned.carried_bytes = planned.carried.size() * carried_.bytes_per_row();
      planned_.push_back(planned);
    }
}

/// The offsets at which any rank needs rows, in the order of the steps. Rows leave a group from the place in it where
/// their inner ring ends, and start there in the next one.
ANNULUS_INLINE void RingPlan::find_offsets() {
  int const inner = request_.schedule == Schedule::double_ring ? request_.ranks_per_group : ranks();
  rank_offsets_ = {ranks(), inner};
  offsets_ = {0};
  for (int i = groups_.size(); i < ranks(); i += groups_.size()) {
    int const group = i / inner, offset = group * inner + (i + group * (inner - 1)) % inner;
    for (Rank owner = 0; owner < ranks(); ++owner)
      if (need(rank_offsets_.forward(owner, offset), owner).visible_pairs > 0) {
        offsets_.push_back(offset);
        break;
      }
  }
}

/// Cuts a reproducible pass into leaves: whole leaves travel, and for each row all partial results that a rank has.
/// `first`: of the first lane, whose sums that stay this lane adds to.
ANNULUS_INLINE void RingPlan::find_leaves(detail::LeafSchedule* first) {
  if (!request_.rules.reproducible) return;
  auto grid = leaves_ ? leaves_->shared_grid()
                      : std::make_shared<detail::LeafGrid const>(query_segments_, key_segments_, request_.rules,
                                                                 request_.elementwise);
  grid->widen_to_leaves(needs_, ranks());
  leaves_.emplace(std::move(grid), rotation_ == Rotation::keys, !resident_.empty(), !carried_.empty(), offsets_,
                  ranks(), rows_, first);
  for (PartLayout& part : carried_.parts) part.batch *= leaves_->nodes_sent();
}

ANNULUS_INLINE void RingPlan::find_tiles(Rank rank, int step, detail::TileFinder& finder,
                                         std::vector<Tile>& tiles) const {
  if (!lanes_.empty()) return lanes_[0].find_tiles(rank, step, finder, tiles);
  PlannedStep const& planned = this->step(rank, step);
  bool const keys = rotation_ == Rotation::keys;
  pair(keys ? rank : planned.owner, keys ? planned.owner : rank, finder, &tiles);
  for (Tile& tile : tiles) {
    tile = keys ? tile.with_keys(planned.held) : tile.with_queries(planned.held);
    (keys ? tile.key_begin : tile.query_begin) -= planned.held.begin;
  }
}

#endif

}  // namespace annulus
