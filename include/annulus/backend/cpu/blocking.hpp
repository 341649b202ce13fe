#pragma once
// Block sizes that fit registers and caches. SIMD lanes are queries: a panel of queries is a few vectors wide, so that
// maxima, sums and rescaling run down the columns of a block of scores, without reductions across lanes.

#include <algorithm>

#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Block sizes for sums of type A.
template <class A>
struct Blocking {
  static constexpr int lanes = Vector<A>::lanes;
  /// A product keeps micro_rows x panel_vectors sums in registers, plus a row of vectors and a broadcast element.
  static constexpr int micro_rows = vector_bytes == 64 ? 8 : 4;
  static constexpr int panel_vectors = vector_bytes == 64 ? 2 : vector_bytes == 32 ? 3 : vector_registers == 32 ? 4 : 2;
  static constexpr int panel = lanes * panel_vectors;  ///< queries of a panel
  static constexpr int key_block = 128;                ///< keys of a block; a multiple of micro_rows
  /// Panels of the largest panel group, which shares one pass over the keys: its queries and results stay in L2 cache.
  static constexpr int panels_per_group = 256 / panel;
  static constexpr int sum_length = 64;  ///< products of a partial sum, before it is added to a longer one

  static_assert(panel % micro_rows == 0 && key_block % micro_rows == 0);

  static constexpr Index dim_padded(Index dim) { return ceil_divide(dim, lanes) * lanes; }
  static constexpr Index key_blocks(Index keys) { return ceil_divide(keys, key_block); }
  static constexpr Index panels(Index rows) { return ceil_divide(rows, panel); }
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
