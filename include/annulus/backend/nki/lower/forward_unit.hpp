#pragma once
// What the forward pass is cut into, and how it is spread over engines and buffers.

#include <span>

#include "annulus/backend/nki/lower/row_tiles.hpp"

namespace annulus::nki {

/// How the work is spread over engines and buffers; found with the cost model. Numbers of keys are multiples of 128.
struct ForwardTuning {
  Index group_keys = 4096;    ///< keys between two corrections of the accumulator
  Index slot_keys = 2304;     ///< short units go through the pipeline together until they have so many keys
  Index query_tiles = 2;      ///< row tiles whose queries one DMA brings, where they are neighbours
  Index load_keys = 1024;     ///< keys that one DMA brings
  Index span_keys = 512;      ///< keys that leave PSUM in one instruction: a bank
  Index dma_transposed = 9;   ///< of every 16 full 128 x 128 blocks of P^T, these go by DMA
  Index vector_share = 3;     ///< of the others, VectorE takes one of so many out of PSUM, ScalarE the rest
  Index dma_shortest = 2048;  ///< keys; shorter slots would wait for DMA's latency
  Index dma_blocks = 4;       ///< of P^T that one DMA brings, as in published kernels: each takes a while to begin
};

/// Throws UnsupportedError.
inline void check_tuning(ForwardTuning const& tuning) {
  auto const keys = [](char const* name, Index value, Index least) {
    check<UnsupportedError>(value >= least && value % tile_rows == 0 && value <= most_rows, "nki: ", name, " is ",
                            value, "; it must be a multiple of ", tile_rows, " from ", least, " to ", most_rows);
  };
  keys("group_keys", tuning.group_keys, tile_rows);
  keys("slot_keys", tuning.slot_keys, 0);
  keys("load_keys", tuning.load_keys, tile_rows);
  keys("dma_shortest", tuning.dma_shortest, 0);
  check<UnsupportedError>(tuning.span_keys == 512 || tuning.span_keys == 1024 || tuning.span_keys == 2048,
                          "nki: span_keys is ", tuning.span_keys, "; PSUM has banks of 512 scores: 512, 1024 or 2048");
  check<UnsupportedError>(tuning.query_tiles >= 1 && tuning.query_tiles <= 16, "nki: query_tiles is ",
                          tuning.query_tiles, "; 1 to 16");
  check<UnsupportedError>(tuning.dma_transposed >= 0 && tuning.dma_transposed <= 16, "nki: dma_transposed is ",
                          tuning.dma_transposed, "; 0 to 16, as it counts of 16 blocks");
  check<UnsupportedError>(tuning.vector_share >= 1, "nki: vector_share is ", tuning.vector_share, "; at least 1");
  check<UnsupportedError>(tuning.dma_blocks >= 1 && tuning.dma_blocks <= 16, "nki: dma_blocks is ", tuning.dma_blocks,
                          "; 1 to 16");
}

/// A negated maximum that says: nothing seen yet. Scores that were masked, which are the lowest float times the
/// multiplier, stay far below its opposite.
inline constexpr float empty_negated_maximum = 1e30f;

struct ForwardUnit {
  Index head = 0;        ///< query head inside the item's group
  std::size_t tile = 0;  ///< row tile
  RowRange keys;         ///< rows of the shard
  std::size_t piece = 0;
  bool select = false;               ///< some row does not see some key
  bool first = false, last = false;  ///< of the units of this head and tile in this section
  std::size_t section = 0;
  Index column = 0;  ///< where its keys begin in the tiles of its slot; a multiple of 128
};

/// Units that go through the stages together.
using ForwardSlot = std::span<ForwardUnit const>;

/// Where the keys and values of a unit lie.
struct KeySection {
  RowRange rows;
  Index key_number = -1, value_number = -1, bounds_number = -1;
};

/// What a round carries from unit to unit.
struct ForwardState {
  bool resident = true;
  TileHandle negated_maximum, sum;  ///< [128, heads * tiles]
  TileHandle accumulator;           ///< resident: [128, heads * tiles * value_dim]
  TensorHandle spilled;             ///< else in the core's own HBM [heads, rows, value_dim]

  /// The accumulator rows of a tile in HBM.
  Access in_hbm(Index head, RowTile const& tile, Index rows, Index dim) const {
    return spilled.pattern(tile.begin * dim + head * rows * dim, {{dim, tile.count}, {1, dim}});
  }
};

}  // namespace annulus::nki
