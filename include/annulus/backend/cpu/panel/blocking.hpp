#pragma once
// Block sizes that fit registers and caches, the storage layout of packed rows, and prefetching. SIMD lanes are
// queries: a panel of queries is a few vectors wide, so that maxima, sums and rescaling run down the columns of a block
// of scores, without reductions across lanes.

#include <array>
#include <cstddef>
#include <cstdint>

#include "annulus/backend/cpu/simd/operand.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Block sizes for sums of type A.
template <class A>
struct Blocking {
  static constexpr int lanes = Vector<A>::lanes;
  /// A product keeps micro_rows x panel_vectors sums in registers, plus a row of vectors and a broadcast element.
  static constexpr int micro_rows = vector_bytes == 64 ? 8 : 4;
  static constexpr int panel_vectors = vector_bytes == 64 ? 2 : vector_bytes == 32 ? 3 : vector_registers == 32 ? 4 : 2;
  static constexpr int panel = lanes * panel_vectors;  ///< queries of a panel
  /// First vector of the second half of a panel, which alone sees the last keys of the panel under a causal mask.
  static constexpr int half = panel_vectors / 2;
#if defined(ANNULUS_CPU_HAS_AMX)
  static constexpr int key_block = 256;  ///< keys of a block; tiles read and write the sums of the values once a block
#else
  static constexpr int key_block = 128;  ///< keys of a block; a multiple of micro_rows
#endif
  /// Panels of the largest panel group, which shares one pass over the keys: its queries and results stay in L2 cache.
  static constexpr int panels_per_group = 256 / panel;
  static constexpr int sum_length = 64;  ///< products of a partial sum, before it is added to a longer one

  static_assert(panel % micro_rows == 0 && key_block % micro_rows == 0);

  static constexpr Index dim_padded(Index dim) { return annulus::detail::ceil_divide(dim, lanes) * lanes; }
  static constexpr Index key_blocks(Index keys) { return annulus::detail::ceil_divide(keys, key_block); }
  static constexpr Index panels(Index rows) { return annulus::detail::ceil_divide(rows, panel); }
};

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
  /// Products with the second half of a panel alone (Blocking::half) are possible.
  static constexpr bool halves = !tiled && !is_quad<E>;

  static constexpr Index rows_padded(Index count) { return annulus::detail::ceil_divide(count, rows) * rows; }
  static constexpr Index depth_padded(Index count) { return annulus::detail::ceil_divide(count, depth) * depth; }
  /// Packed elements along an axis of extent `count`.
  static constexpr Index elements(Index count) {
    return depth_padded(annulus::detail::ceil_divide(count, Operand<E>::depth));
  }
  /// Offset of element k of row r in a group.
  static constexpr Index place(Index r, Index k) { return (k / depth * rows + r) * depth + k % depth; }
};

/// Queue of the rows that are needed next, prefetched while products keep the multipliers busy, a few cache lines at a
/// time: a processor drops prefetches when it gets many at once. The rows are too far apart for the hardware
/// prefetcher.
class PrefetchQueue {
 public:
  void clear() { next_ = end_ = 0; }

  /// Appends a row of `dim` elements. Ignores rows beyond the capacity, and rows that are not contiguous.
  template <class T>
  void add(T const* row, Index dim_stride, Index dim) {
    if (dim_stride != 1 || end_ == capacity) return;
    rows_[end_++] = {reinterpret_cast<std::uintptr_t>(row) / line_bytes * line_bytes,
                     reinterpret_cast<std::uintptr_t>(row + dim)};
  }

  /// Prefetches the next cache lines. Products call it every few hundred cycles.
  [[gnu::always_inline]] void next() {
    if (next_ < end_) fetch();
  }

 private:
  static constexpr std::size_t capacity = 128;
  static constexpr std::uintptr_t line_bytes = 64;
  static constexpr int lines_at_once = 16;

  struct Row {
    std::uintptr_t place, end;
  };

  void fetch() {
    for (int line = 0; line < lines_at_once && next_ < end_; ++line) {
      Row& row = rows_[next_];
      __builtin_prefetch(reinterpret_cast<void const*>(row.place));
      if ((row.place += line_bytes) >= row.end) ++next_;
    }
  }

  std::array<Row, capacity> rows_;
  std::size_t next_ = 0, end_ = 0;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
