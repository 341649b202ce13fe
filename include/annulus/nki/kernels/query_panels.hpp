#pragma once
// Query rows in SBUF. One DMA loads a panel of adjacent row tiles, to amortise its latency.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/operand_loads.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// Loads panels of queries and tracks the newest.
class QueryPanels {
 public:
  /// Location of the queries of a row tile: number of the panel's tile, and first column in it.
  struct Place {
    Index number = -1, column = 0;
  };

  /// Panels of up to `most` row tiles; queries are multiplied by `factor`.
  QueryPanels(Builder& builder, OperandLoads& loads, KernelSpec const& spec, Index most, float factor)
      : builder_(&builder),
        loads_(&loads),
        chunks_{spec.shape.head_dim},
        most_(most),
        factor_(factor),
        panel_(builder, "queries", Memory::sbuf, chunks_.largest(), chunks_.count() * most * tile_rows, spec.type, 2) {}

  /// `source`: the queries of the first head of the group that shares keys.
  void begin_round(HeadSource source, std::vector<RowTile> const& tiles) {
    source_ = std::move(source);
    tiles_ = &tiles;
    newest_.reset();
    panels_.clear();
    for (TileRun const& run : runs_of(tiles)) {
      // Tiles that alternate between cores are not adjacent.
      std::size_t const length = run.stride == tile_rows ? static_cast<std::size_t>(most_) : 1;
      for (std::size_t first = run.first; first < run.last; first += length)
        panels_.push_back({first, std::min(run.last, first + length), run.stride});
    }
  }

  /// Returns the location of a row tile's queries; loads its panel unless that is the newest.
  Place fetch(Index head, std::size_t tile) {
    auto const panel = std::ranges::find_if(panels_, [&](TileRun const& run) { return tile < run.last; });
    std::pair const wanted{head, panel->first};
    if (newest_ != wanted) load(head, *panel);
    newest_ = wanted;
    return {panel_.newest_number(), static_cast<Index>(tile - panel->first) * tile_rows};
  }

  /// Access to chunk c of the features of `rows` queries.
  Access chunk(Place const& place, Index c, Index rows) {
    return panel_[place.number].part(0, chunks_.size(c), c * most_ * tile_rows + place.column, rows);
  }

 private:
  void load(Index head, TileRun const& panel) {
    panel_.make();
    HeadSource source = source_;
    source.offset += Affine(head * source.rows * source.dim);
    Index const count = static_cast<Index>(panel.last - panel.first - 1) * tile_rows + (*tiles_)[panel.last - 1].count;
    loads_->by_feature(source, (*tiles_)[panel.first].begin, count, panel_.newest(), most_ * tile_rows);
    if (factor_ == 1) return;
    for (Index c = 0; c < chunks_.count(); ++c) {
      Access const part = panel_.newest().part(0, chunks_.size(c), c * most_ * tile_rows, count);
      builder_->emit(
          TensorScalar{part, part, Operator::multiply, factor_, false, std::nullopt, 0.0f, false, Engine::gpsimd});
    }
  }

  Builder* builder_;
  OperandLoads* loads_;
  Chunks chunks_;
  Index most_;
  float factor_;
  RotatingTile panel_;
  HeadSource source_;
  std::vector<RowTile> const* tiles_ = nullptr;
  std::vector<TileRun> panels_;
  std::optional<std::pair<Index, std::size_t>> newest_;  // head, first tile
};

}  // namespace annulus::nki
