#pragma once
// Units of work of a forward pass, the keys that they refer to, and the running softmax state that they update.

#include <span>

#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// Unit of work: a query row tile with a group of keys.
struct ForwardUnit {
  Index head = 0;  ///< query head within the item's group
  Index tile = 0;  ///< row tile
  RowRange keys;   ///< rows of the shard
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
  int step = 0;                ///< of the ring
  std::size_t first_slot = 0;  ///< of the schedule
  Index key_number = -1, value_number = -1, bounds_number = -1;
};

/// Running softmax state of a round.
struct ForwardState {
  bool resident = true;
  TileHandle negated_maximum, sum;  ///< [128, heads * tiles]
  Index pitch = 0;                  ///< columns of the accumulator of a row tile: value_dim, or more
  TileHandle accumulator;           ///< resident: [128, heads * tiles * pitch]
  HeadRows spilled;                 ///< not resident: in private HBM [heads, rows, value_dim]

  /// The accumulator rows of a tile in HBM.
  Access in_hbm(Index head, RowTile const& tile) const { return spilled.head(head).block(tile.begin, tile.count); }
};

}  // namespace annulus::nki
