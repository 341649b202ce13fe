#pragma once
// Tiles and global positions of the query and key rows of one step.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// Recomputed for each step in reused storage: storing all steps would take more memory than the keys of one step.
class StepPlaces {
 public:
  /// Computes the tiles and positions of step `index` of `rank`; invalidates those of the step before.
  void find(RingPlan const& plan, Rank rank, int index) {
    PlannedStep const& planned = plan.step(rank, index);
    bool const keys_rotate = plan.rotation() == Rotation::keys;
    RowRange const whole{0, plan.resident_rows(rank)};
    plan.find_tiles(rank, index, finder_, tiles_);
    assign(query_positions_, plan.query_segments(keys_rotate ? rank : planned.owner),
           keys_rotate ? whole : planned.held, plan.request().query_offset);
    assign(key_positions_, plan.key_segments(keys_rotate ? planned.owner : rank), keys_rotate ? planned.held : whole,
           0);
  }

  std::span<Tile const> tiles() const { return tiles_; }
  /// Global position of each query row, query offset included.
  std::span<Index const> query_positions() const { return query_positions_; }
  /// Global position of each key row.
  std::span<Index const> key_positions() const { return key_positions_; }

 private:
  static void assign(std::vector<Index>& positions, std::span<Segment const> segments, RowRange rows, Index offset) {
    positions.clear();
    positions.reserve(static_cast<std::size_t>(rows.size()));
    for (Segment const& segment : segments) {
      RowRange const part{std::max(rows.begin, segment.local_begin),
                          std::min(rows.end, segment.local_begin + segment.length)};
      for (Index row = part.begin; row < part.end; ++row)
        positions.push_back(segment.global_begin + (row - segment.local_begin) * segment.global_stride + offset);
    }
  }

  TileFinder finder_;
  std::vector<Tile> tiles_;
  std::vector<Index> query_positions_, key_positions_;
};

}  // namespace annulus
