#pragma once
// Storage layout of the rows whose elements a product broadcasts.

#include "annulus/backend/cpu/blocking.hpp"
#include "annulus/backend/cpu/simd/operand.hpp"
#include "annulus/backend/cpu/simd/amx_tiles.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Rows are stored in groups of `rows`, a group as [depth_padded / depth][rows][depth] elements: with a depth of one
/// the elements of the rows alternate, which suits vectors; otherwise they form AMX tiles.
template <class E>
struct PackedGroup {
#if defined(ANNULUS_CPU_HAS_AMX)
  static constexpr bool tiled = is_pair<E>;
#else
  static constexpr bool tiled = false;
#endif
  static constexpr Index rows = tiled ? 2 * amx_tile_side : Index{Blocking<typename Operand<E>::Sum>::micro_rows};
  static constexpr Index depth = tiled ? amx_tile_side : 1;

  static constexpr Index rows_padded(Index count) { return ceil_divide(count, rows) * rows; }
  static constexpr Index depth_padded(Index count) { return ceil_divide(count, depth) * depth; }
  /// Packed elements along an axis of extent `count`.
  static constexpr Index elements(Index count) { return depth_padded(ceil_divide(count, Operand<E>::depth)); }
  /// Offset of element k of row r in a group.
  static constexpr Index place(Index r, Index k) { return (k / depth * rows + r) * depth + k % depth; }
};

/// Configures this thread, for the lifetime of the object, to multiply elements E: AMX needs its tiles configured.
template <class E>
struct AmxTilesFor {};
#if defined(ANNULUS_CPU_HAS_AMX)
template <>
struct AmxTilesFor<BfloatPair> : AmxTiles {};
#endif

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
