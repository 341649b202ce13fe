#pragma once
// Units of work of the forward pass, and their distribution over engines and buffers.

#include <span>

#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// Distribution of the work over engines and buffers, tuned with the cost model. Key counts are multiples of 128.
struct ForwardTuning {
  Index group_keys = 4096;    ///< keys between two corrections of the accumulator
  Index slot_keys = 2304;     ///< short units share a pipeline slot until it has this many keys
  Index query_tiles = 2;      ///< adjacent row tiles whose queries one DMA loads
  Index load_keys = 1024;     ///< keys that one DMA loads
  Index span_keys = 512;      ///< keys that one instruction moves out of PSUM; 512 are a bank
  Index dma_transposed = 9;   ///< of every 16 full 128 x 128 blocks of P^T, this many are transposed by DMA
  Index vector_share = 3;     ///< of the others, VectorE copies one in this many out of PSUM, ScalarE the rest
  Index dma_shortest = 2048;  ///< keys; shorter slots use no DMA transposes, whose latency would stall them
  Index dma_blocks = 4;       ///< blocks of P^T per DMA, to amortise its latency, as in published kernels
};

/// Throws UnsupportedError if a member is out of range.
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

/// Negated maximum of a row that has seen no key yet. Masked scores, which are the lowest float times the multiplier,
/// stay far below -1e30.
inline constexpr float empty_negated_maximum = 1e30f;

/// Unit of work: a query row tile with a group of keys.
struct ForwardUnit {
  Index head = 0;        ///< query head within the item's group
  std::size_t tile = 0;  ///< row tile
  RowRange keys;         ///< rows of the shard
  std::size_t piece = 0;
  bool select = false;               ///< some row does not see some key: mask by range_select
  bool first = false, last = false;  ///< unit of this head and tile in this section
  std::size_t section = 0;
  Index column = 0;  ///< column of its first key in the tiles of its slot; a multiple of 128
};

/// Units that pass the pipeline stages together.
using ForwardSlot = std::span<ForwardUnit const>;

/// A run of key rows that is in SBUF together, and the numbers of its tiles.
struct KeySection {
  RowRange rows;
  Index key_number = -1, value_number = -1, bounds_number = -1;
};

/// Running softmax state of a round.
struct ForwardState {
  bool resident = true;
  TileHandle negated_maximum, sum;  ///< [128, heads * tiles]
  TileHandle accumulator;           ///< resident: [128, heads * tiles * value_dim]
  TensorHandle spilled;             ///< not resident: in private HBM [heads, rows, value_dim]

  /// The accumulator rows of a tile in HBM.
  Access in_hbm(Index head, RowTile const& tile, Index rows, Index dim) const {
    return spilled.pattern(tile.begin * dim + head * rows * dim, {{dim, tile.count}, {1, dim}});
  }
};

}  // namespace annulus::nki
