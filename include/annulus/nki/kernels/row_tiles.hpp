#pragma once
// Row tiles (the query rows of one head, up to 128 at a time), their per-row values, and numbered tiles in SBUF.

#include <utility>
#include <vector>

#include "annulus/mask/mask.hpp"
#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/program/builder.hpp"

namespace annulus::nki {

/// Query rows [begin, begin + count) of a shard; `begin` may depend on the core. All are in one column of a [128,
/// columns] layout whose element (p, c) is row c * 128 + p.
struct RowTile {
  Affine begin;
  Index count = 0;
  Affine first_partition, column;
  RowRange rows_of_all_cores;
  bool overlaps = false;  ///< the last row of core 0 is the first of core 1
};

/// Cuts `rows` into tiles. Tiles of shared rows alternate between the cores, which balances causal work; a remainder of
/// less than two tiles is halved. Both cores run the same program, so an odd row is computed by both and stored by one.
inline std::vector<RowTile> row_tiles(Index rows, bool shared) {
  std::vector<RowTile> tiles;
  Affine const core = Affine::of(core_variable);
  Index begin = 0;
  Index const stride = shared ? 2 * tile_rows : tile_rows;
  for (; begin + stride <= rows; begin += stride) {
    Affine const mine = shared ? core * tile_rows + begin : Affine(begin);
    Affine const column = shared ? core + begin / tile_rows : Affine(begin / tile_rows);
    tiles.push_back({mine, tile_rows, 0, column, {begin, begin + stride}});
  }
  for (; begin < rows; begin += tile_rows) {
    Index const left = std::min(tile_rows, rows - begin);
    Index const mine = shared ? ceil_divide(left, 2) : left;
    Affine const first = shared ? core * (left - mine) : Affine(0);
    tiles.push_back({first + begin, mine, first, begin / tile_rows, {begin, begin + left}, shared && left % 2 == 1});
  }
  return tiles;
}

/// `rows` rows of `dim` elements of a tensor in HBM, adjacent from `offset` on.
inline Access rows_at(TensorHandle const& tensor, Affine offset, Index rows, Index dim) {
  return tensor.pattern(std::move(offset), {{dim, rows}, {1, dim}});
}

/// Calls store(first, count) to write rows [first, first + count) of a tile such that exactly one core writes each row.
template <class Store>
void store_once(Builder& builder, RowTile const& tile, Store&& store) {
  if (!tile.overlaps) {
    store(Index{0}, tile.count);
    return;
  }
  builder.on_core(0, [&] { store(Index{0}, tile.count); });
  if (tile.count > 1) builder.on_core(1, [&] { store(Index{1}, tile.count - 1); });
}

/// Tiles [first, last): one tile, or several of 128 rows each at equal distances, which one instruction can process.
struct TileRun {
  std::size_t first = 0, last = 0;
  Index stride = tile_rows;

  Index count() const { return static_cast<Index>(last - first); }
};
/// Groups the tiles into maximal runs; a tile with fewer than 128 rows is a run of its own.
inline std::vector<TileRun> runs_of(std::vector<RowTile> const& tiles) {
  std::vector<TileRun> runs;
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    Index const stride = tiles[i].rows_of_all_cores.size();
    bool const joins =
        !runs.empty() && tiles[i].count == tile_rows && tiles[i - 1].count == tile_rows && runs.back().stride == stride;
    if (joins)
      ++runs.back().last;
    else
      runs.push_back({i, i + 1, stride});
  }
  return runs;
}

/// Numbers the tiles of a buffer and raises its rotation as older tiles are used.
class RotatingTile {
 public:
  RotatingTile() = default;
  RotatingTile(Builder& builder, std::string name, Index elements, ElementType type = ElementType::float32,
               int rotation = 2, Memory memory = Memory::sbuf, Index partitions = tile_rows)
      : builder_(&builder), newest_(builder.declare(std::move(name), memory, partitions, elements, type, rotation)) {}

  /// Allocates a tile and returns its sequence number.
  Index make() {
    builder_->allocate(newest_);
    return made_++;
  }
  /// Allocates a tile and returns it.
  TileHandle make_tile() {
    make();
    return newest_;
  }
  /// The tile of that number; raises the rotation of the buffer so that it is still held.
  TileHandle operator[](Index number) const {
    int const age = static_cast<int>(made_ - 1 - number);
    builder_->keep(newest_, age + 1);
    return newest_.before(age);
  }
  TileHandle newest() const { return newest_; }
  Index newest_number() const { return made_ - 1; }

 private:
  Builder* builder_ = nullptr;
  TileHandle newest_;
  Index made_ = 0;
};

/// Per-row values of one head in HBM, [128, columns] with row c * 128 + p at (p, c); in SBUF, a column per row tile.
struct ColumnSource {
  TensorHandle tensor;
  Affine offset;
  Index columns = 0;

  /// Rows [first, first + count) of each row tile of a run that begins with `tile`.
  Access rows(RowTile const& tile, Index first, Index count, TileRun const& run) const {
    return tensor.pattern(offset + (tile.first_partition + first) * columns + tile.column,
                          {{columns, count}, {run.stride / tile_rows, run.count()}});
  }
};

/// Loads one column per row tile into columns [first_column, first_column + tiles.size()) of `tile`.
inline void load_columns(Builder& builder, ColumnSource const& source, std::vector<RowTile> const& tiles,
                         TileHandle const& tile, Index first_column) {
  for (TileRun const& run : runs_of(tiles)) {
    RowTile const& first = tiles[run.first];
    builder.emit(DmaCopy{tile.part(0, first.count, first_column + static_cast<Index>(run.first), run.count()),
                         source.rows(first, 0, first.count, run)});
  }
}

/// Stores one column per row tile to HBM; each row is stored by exactly one core.
inline void store_columns(Builder& builder, TileHandle const& tile, Index first_column,
                          std::vector<RowTile> const& tiles, ColumnSource const& to) {
  for (TileRun const& run : runs_of(tiles)) {
    RowTile const& first = tiles[run.first];
    store_once(builder, first, [&](Index row, Index rows) {
      builder.emit(DmaCopy{to.rows(first, row, rows, run),
                           tile.part(row, rows, first_column + static_cast<Index>(run.first), run.count())});
    });
  }
}

/// Zeroes the places beyond the last of `rows` rows; `zeros`: a column of zeros; `shared`: the cores share the head.
inline void pad_columns(Builder& builder, ColumnSource const& to, Index rows, TileHandle const& zeros, bool shared) {
  Index const used = rows % tile_rows, rest = tile_rows - used;
  auto const pad = [&] {
    builder.emit(
        DmaCopy{to.tensor.pattern(to.offset + used * to.columns + to.columns - 1, {{to.columns, rest}, {1, 1}}),
                zeros.part(0, rest, 0, 1)});
  };
  shared ? builder.on_core(0, pad) : pad();
}

}  // namespace annulus::nki
