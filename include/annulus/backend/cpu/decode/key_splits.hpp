#pragma once
// Division of the keys of a step with few query rows into work items and blocks of keys, the splits of Flash-Decoding.

#include <algorithm>

#include "annulus/backend/cpu/panel/extents.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// The keys of a work item, and its kv heads. Blocks and pieces depend on the shapes alone, so that results do not depend
/// on the number of threads or on strides, to the bit.
struct KeySplits {
  static constexpr Index most_rows = 16;  ///< query rows of a kv head
  static constexpr Index block = 128;     ///< keys of a block
  static constexpr Index most_heads = 8;  ///< kv heads of a work item
  /// Query rows that share a vector in products with keys; 0: none do. Then a work item is of one kv head.
  static constexpr Index rows_of_vector = vector_bytes >= 32 ? vector_bytes / 8 : 0;

  /// Keys from which on this is faster than packed panels, in float as in bfloat16; see the README of this folder.
  static constexpr Index least_keys(Index rows) { return rows <= 4 ? 16 : rows <= 8 ? 128 : 256; }

  Index piece;  ///< keys of a work item, whole blocks
  Index heads;  ///< kv heads of a work item: neighbours in memory, whose keys are read in the order of memory

  template <class T, class E>
  static KeySplits of(StepOperands<T, HostMemory> const& operands, StepExtents<E> const& extents) {
    Index const rows = extents.rows(0).count();
    // Enough work items for many threads; each takes much longer than merging its result.
    constexpr Index items = 256;
    Index const share = extents.heads() * extents.keys / items, least = std::max(Index{256}, 64 * rows);
    Index const piece = annulus::detail::ceil_divide(std::clamp(share, least, Index{4096}), block) * block;

    auto const neighbours = [](auto const& view) {
      return view.stride(axis::dim) == 1 && view.stride(axis::heads) == view.extent(axis::dim) &&
             view.stride(axis::sequence) > view.stride(axis::heads);
    };
    Index heads = 1;
    if ((rows_of_vector == 0 || rows < rows_of_vector) && neighbours(operands.k) && neighbours(operands.v) &&
        extents.value.size == extents.value.padded() &&
        extents.head.size % (Blocking<Accumulator<T>>::lanes * Operand<E>::depth) == 0)
      for (Index h = 2; h <= std::min(extents.kv_heads, most_heads / std::max<Index>(rows, 1)); ++h)
        if (extents.kv_heads % h == 0) heads = h;
    return {piece, heads};
  }
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
