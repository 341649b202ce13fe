#pragma once
// How the query rows of one head are cut into tiles of up to 128 rows, for one core or shared between the two of a pair.

#include <vector>

#include "annulus/backend/nki/lower/kernel_spec.hpp"
#include "annulus/backend/nki/program/builder.hpp"
#include "annulus/mask/band.hpp"

namespace annulus::nki {

/// Rows [begin, begin + count) of a shard; `begin` may depend on the core. All of them lie in one column of a [128, columns]
/// layout whose element (p, c) is row c * 128 + p.
struct RowTile {
  Affine begin;
  Index count = 0;
  Affine first_partition, column;
  RowRange rows_of_all_cores;
  bool overlaps = false;  ///< the last row of core 0 is the first of core 1
};

/// Cores that share the rows take tiles in turns, so that causal work balances; what is left below two tiles is halved. Both
/// run the same program: an odd row out is computed by both, and stored by one.
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

/// store(first, count): writes rows [first, first + count) of a tile, each by one core only.
template <class Store>
void store_once(Builder& builder, RowTile const& tile, Store&& store) {
  if (!tile.overlaps) {
    store(Index{0}, tile.count);
    return;
  }
  builder.on_core(0, [&] { store(Index{0}, tile.count); });
  if (tile.count > 1) builder.on_core(1, [&] { store(Index{1}, tile.count - 1); });
}

/// Tiles [first, last) that are whole and equally far apart: one instruction can serve them all.
struct TileRun {
  std::size_t first = 0, last = 0;
  Index stride = tile_rows;
};
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

}  // namespace annulus::nki
