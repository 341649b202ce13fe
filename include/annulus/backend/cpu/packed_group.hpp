#pragma once
// How the rows are stored whose elements a product repeats.

#include "annulus/backend/cpu/blocking.hpp"
#include "annulus/backend/cpu/simd/operand.hpp"
#include "annulus/backend/cpu/simd/tiles.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Rows lie in groups of `rows`, a group as [depth_padded / depth][rows][depth] elements: with a depth of one the elements
/// of the rows alternate, which suits vectors; else they form tiles.
template <class E>
struct PackedGroup {
#if defined(ANNULUS_CPU_HAS_TILES)
  static constexpr bool tiled = is_pair<E>;
#else
  static constexpr bool tiled = false;
#endif
  static constexpr Index rows = tiled ? 2 * tile_side : Index{Blocking<typename Operand<E>::Sum>::micro_rows};
  static constexpr Index depth = tiled ? tile_side : 1;

  static constexpr Index rows_padded(Index count) { return ceil_divide(count, rows) * rows; }
  static constexpr Index depth_padded(Index count) { return ceil_divide(count, depth) * depth; }
  /// Elements along an axis of `count` numbers.
  static constexpr Index elements(Index count) { return depth_padded(ceil_divide(count, Operand<E>::depth)); }
  /// Where element k of row r lies in a group.
  static constexpr Index place(Index r, Index k) { return (k / depth * rows + r) * depth + k % depth; }
};

/// While it lives, this thread can multiply such elements.
template <class E>
struct ReadyTiles {};
#if defined(ANNULUS_CPU_HAS_TILES)
template <>
struct ReadyTiles<BfloatPair> : FullTiles {};
#endif

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
