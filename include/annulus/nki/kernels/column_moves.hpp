#pragma once
// Copies of per-row values between HBM, [.., 128, columns] with row c * 128 + p at (p, c), and SBUF, a column per tile.

#include <utility>
#include <vector>

#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// Per-row values of one head in HBM.
struct ColumnSource {
  TensorHandle tensor;
  Affine offset;
  Index columns = 0;

  /// Rows [first, first + count) of `tiles` row tiles that begin with `tile` and are `stride` rows apart.
  Access rows(RowTile const& tile, Index first, Index count, Index tiles, Index stride) const {
    return tensor.pattern(offset + (tile.first_partition + first) * columns + tile.column,
                          {{columns, count}, {stride / tile_rows, tiles}});
  }
};

/// Loads one column per row tile into columns [first_column, first_column + tiles.size()) of `tile`.
inline void load_columns(Builder& builder, ColumnSource const& source, std::vector<RowTile> const& tiles,
                         TileHandle const& tile, Index first_column) {
  for (TileRun const& run : runs_of(tiles)) {
    RowTile const& first = tiles[run.first];
    auto const count = static_cast<Index>(run.last - run.first);
    builder.emit(DmaCopy{tile.part(0, first.count, first_column + static_cast<Index>(run.first), count),
                         source.rows(first, 0, first.count, count, run.stride)});
  }
}

/// Stores one column per row tile to HBM; each row is stored by exactly one core.
inline void store_columns(Builder& builder, TileHandle const& tile, Index first_column,
                          std::vector<RowTile> const& tiles, ColumnSource const& to) {
  for (TileRun const& run : runs_of(tiles)) {
    RowTile const& first = tiles[run.first];
    auto const count = static_cast<Index>(run.last - run.first);
    store_once(builder, first, [&](Index row, Index rows) {
      builder.emit(DmaCopy{to.rows(first, row, rows, count, run.stride),
                           tile.part(row, rows, first_column + static_cast<Index>(run.first), count)});
    });
  }
}

}  // namespace annulus::nki
