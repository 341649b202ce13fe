#pragma once
// Log-sum-exp layout of nkilib, its "lse tiles": [batch, heads, 128, ceil(s / 128)], where element (p, g) belongs to
// local position g * 128 + p.

#include <limits>

#include "annulus/attention/ring_attention.hpp"

namespace annulus::nkilib {

/// Partitions of a Trainium core.
inline constexpr Index partitions = 128;

/// Columns of an lse tile for `rows` positions.
constexpr Index lse_columns(Index rows) { return ceil_divide(rows, partitions); }

/// Converts lse [batch, heads, s] to tiles [batch, heads, 128, lse_columns(s)] in the element type of the tiles.
/// Positions past s and masked rows (lse -inf) become 0.
template <class L, class Tile>
void to_lse_tiles(TensorView<L const, 3> lse, TensorView<Tile, 4> tiles) {
  for (Index b = 0; b < tiles.extent(0); ++b)
    for (Index h = 0; h < tiles.extent(1); ++h)
      for (Index p = 0; p < tiles.extent(2); ++p)
        for (Index g = 0; g < tiles.extent(3); ++g) {
          Index const row = g * partitions + p;
          bool const holds_a_value = row < lse.extent(2) && lse(b, h, row) != -std::numeric_limits<L>::infinity();
          tiles(b, h, p, g) = holds_a_value ? static_cast<Tile>(lse(b, h, row)) : Tile(0);
        }
}

/// Converts tiles [batch, heads, 128, lse_columns(s)] to lse [batch, heads, s]. sees_nothing(batch, row) returns true
/// for masked rows, whose lse becomes -inf. A 0 in the tiles does not identify them: it is also the lse of a row whose
/// exponentials add up to 1.
template <class Tile, class L, class SeesNothing>
void from_lse_tiles(TensorView<Tile const, 4> tiles, TensorView<L, 3> lse, SeesNothing&& sees_nothing) {
  for (Index b = 0; b < lse.extent(0); ++b)
    for (Index h = 0; h < lse.extent(1); ++h)
      for (Index row = 0; row < lse.extent(2); ++row)
        lse(b, h, row) = sees_nothing(b, row) ? -std::numeric_limits<L>::infinity()
                                              : static_cast<L>(tiles(b, h, row % partitions, row / partitions));
}

}  // namespace annulus::nkilib
