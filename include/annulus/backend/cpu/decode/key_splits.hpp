#pragma once
// Division of the keys of a step with few query rows into work items, the splits of Flash-Decoding.

#include <algorithm>

#include "annulus/backend/cpu/kernel_arguments.hpp"
#include "annulus/backend/cpu/panel/extents.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// The keys of a work item, and its kv heads. The bits of results depend on the pieces, which depend on shapes alone,
/// not on the heads of a work item.
struct KeySplits {
  /// Query rows of a kv head: all are lanes of one panel.
  template <class A>
  static constexpr Index most_rows = std::min<Index>(16, Blocking<A>::panel);
  static constexpr Index most_heads = 8;  ///< kv heads of a work item

  /// Keys from which on this is faster than packed panels, in float as in bfloat16; see the README of this folder.
  static constexpr Index least_keys(Index rows) { return rows <= 4 ? 16 : rows <= 8 ? 128 : 256; }

  Index piece;  ///< keys of a work item, whole key blocks
  Index heads;  ///< kv heads of a work item: neighbours in memory, whose keys are read in the order of memory

  template <class T, class E>
  static KeySplits of(FoldArguments<T> const& call, StepExtents<E> const& extents, Index threads) {
    using B = Blocking<Accumulator<T>>;
    Index const rows = extents.rows(0).count();
    // Enough work items for many threads; each takes much longer than merging its result.
    constexpr Index items = 256;
    Index const share = extents.heads() * extents.keys / items, least = std::max(Index{256}, 64 * rows);
    bool const whole = call.step.rules.reproducible;
    Index const piece = B::key_blocks(whole ? extents.keys : std::clamp(share, least, Index{4096})) * B::key_block;

    auto const neighbours = [](auto const& view) {
      return view.stride(axis::dim) == 1 && view.stride(axis::heads) == view.extent(axis::dim) &&
             view.stride(axis::sequence) > view.stride(axis::heads);
    };
    // With fewer keys, waking a thread up takes longer.
    constexpr Index keys_of_thread = 1024;
    Index const busy = std::clamp<Index>(extents.heads() * extents.keys / keys_of_thread, 1, threads);
    Index const most = extents.heads() * annulus::detail::ceil_divide(extents.keys, piece) / busy;
    Index heads = 1;
    if (neighbours(call.operands.k) && neighbours(call.operands.v))
      for (Index h = 2; h <= std::min({extents.kv_heads, most_heads, B::panel / rows, most}); ++h)
        if (extents.kv_heads % h == 0) heads = h;
    return {piece, heads};
  }
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
