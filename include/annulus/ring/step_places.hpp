#pragma once
// Step places: tiles and positions of a step's rows.

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "annulus/core/host_memory.hpp"
#include "annulus/mask/tile.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Sets `positions` to those of local rows of the segments, counted from -offset.
inline void find_positions(std::vector<Index>& positions, std::span<Segment const> segments, RowRange rows,
                           Index offset) {
  positions.clear();
  positions.reserve(static_cast<std::size_t>(rows.size()));
  for (Segment const& segment : segments) {
    RowRange const part = intersection(rows, {segment.local_begin, segment.local_begin + segment.length});
    for (Index row = part.begin; row < part.end; ++row)
      positions.push_back(segment.global_begin + (row - segment.local_begin) * segment.global_stride + offset);
  }
}

/// Sets `positions` to `count` consecutive ones.
inline void find_positions(std::vector<Index>& positions, Index first, Index count) {
  positions.resize(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
}

/// Tiles and global positions of the query and key rows of one step. Recomputed for each step in reused storage:
/// storing all steps would take more memory than the keys of one step.
class StepPlaces {
 public:
  /// Computes the tiles and positions of step `index` of `rank`; invalidates those of the step before.
  void find(RingPlan const& plan, Rank rank, int index) {
    PlannedStep const& planned = plan.step(rank, index);
    auto const ranks = plan.transport().by_side(rank, planned.owner);
    auto const rows = plan.transport().by_side(all_rows(plan.resident_rows(rank)), planned.held);
    plan.find_tiles(rank, index, finder_, tiles_);
    find_positions(query_positions_, plan.query_segments(ranks.queries), rows.queries,
                   plan.request().rules.query_offset.value_or(0));
    find_positions(key_positions_, plan.key_segments(ranks.keys), rows.keys, 0);
  }

  /// Computes the tiles and positions of a pair of leaves, rows counted from the first of each; invalidates those
  /// before.
  void find_leaves(LeafGrid const& grid, Index query_leaf, Index key_leaf) {
    grid.find_tiles(query_leaf, key_leaf, finder_, &tiles_);
    find_positions(query_positions_, grid.first_position(Side::query, query_leaf),
                   grid.leaf(Side::query, query_leaf).rows);
    find_positions(key_positions_, grid.first_position(Side::key, key_leaf), grid.leaf(Side::key, key_leaf).rows);
  }

  /// The same of a rank's queries x the joint keys, which have no position. ids: document ids of the queries, [batch,
  /// rows]; without data: no query is padding.
  template <class Space>
  void find_joint(Index queries, Index keys, TensorView<std::int32_t const, 2, Space> ids) {
    bool const tested = ids.data() != nullptr;
    tiles_.clear();
    if (queries * keys > 0)
      tiles_.push_back({.query_count = queries,
                        .key_count = keys,
                        .query_stride = 0,
                        .key_stride = 0,
                        .coverage = tested ? Coverage::elements : Coverage::full,
                        .visible_pairs = queries * keys});
    find_positions(query_positions_, 0, queries);
    find_positions(key_positions_, 0, keys);
    if constexpr (std::same_as<Space, HostMemory>) {
      query_is_visible_.resize(tested ? static_cast<std::size_t>(ids.size()) : 0);
      for (Index b = 0; tested && b < ids.extent(0); ++b)
        for (Index i = 0; i < queries; ++i)
          query_is_visible_[static_cast<std::size_t>(b * queries + i)] = std::byte{ids(b, i) > 0};
    }
  }
  /// After find_joint: boolean mask [batch, query_heads, queries, keys] that hides padding; without data if no query is
  /// padding.
  template <class Space>
  TensorView<bool const, 4, Space> joint_mask(AttentionShape const& shape) const {
    if (query_is_visible_.empty()) return {};
    Index const queries = std::ssize(query_positions_);
    return {reinterpret_cast<bool const*>(query_is_visible_.data()),
            {shape.batch, shape.query_heads, queries, std::ssize(key_positions_)},
            {queries, 0, 1, 0}};
  }

  std::span<Tile const> tiles() const { return tiles_; }
  /// Global position of each query row, query offset included.
  std::span<Index const> query_positions() const { return query_positions_; }
  /// Global position of each key row.
  std::span<Index const> key_positions() const { return key_positions_; }

 private:
  TileFinder finder_;
  std::vector<Tile> tiles_;
  std::vector<Index> query_positions_, key_positions_;
  std::vector<std::byte> query_is_visible_;  ///< of joint keys, [batch, rows]
};

}  // namespace annulus::detail
