#pragma once
// The keys that each lane of a panel sees in a tile, and their part in one key block.

#include <algorithm>
#include <limits>
#include <span>

#include "annulus/backend/cpu/kernel_arguments.hpp"
#include "annulus/backend/cpu/panel/extents.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Key rows of the step, within one tile, that the lanes of a panel see.
template <class A>
struct PanelKeys {
  static constexpr int width = Blocking<A>::panel;

  Index begin[width], end[width];  ///< bounds of each lane; empty for lanes outside the tile
  RowRange any, all;               ///< hull and intersection of the bounds of the lanes that have a query
  Index first_half_end = 0;        ///< end of the hull of the lanes below vector Blocking::half
  bool each = false;               ///< within the bounds, Step::find_visible decides pair by pair, with these tests
  PairTests tests{};
  Index tile = 0;  ///< place of the tile among those of the step

  /// Sets all members for the part of the panel that lies in tile `of` of the step.
  template <class T>
  void find(HostStep<T> const& step, annulus::detail::StepDocuments const& documents, Tile const& of,
            QueryPanel<A> const& panel) {
    any = {};
    all = {std::numeric_limits<Index>::min(), std::numeric_limits<Index>::max()};
    first_half_end = 0;
    each = false;
    tile = &of - step.tiles.data();
    Index known = -1;
    annulus::detail::KnownDocument document;
    annulus::detail::KeyBounds bounds;
    for (int lane = 0; lane < panel.count; ++lane) {
      Index const query = panel.query(lane) - of.query_begin;
      if (query < 0 || query >= of.query_count) {
        bounds = {};
        known = -1;
      } else if (query != known) {
        bounds = documents.bounds(step, of, panel.rows->batch, query, document);
        known = query;
      }
      begin[lane] = bounds.rows.begin;
      end[lane] = bounds.rows.end;
      if (!bounds.rows.empty()) {
        any = annulus::detail::hull(any, bounds.rows);
        if (lane < Blocking<A>::half * Blocking<A>::lanes) first_half_end = std::max(first_half_end, bounds.rows.end);
        each = each || bounds.each;
        tests = bounds.tests;
      }
      all = annulus::detail::intersection(all, bounds.rows);
    }
    for (int lane = panel.count; lane < width; ++lane) begin[lane] = end[lane] = 0;
  }

  /// The part of `keys` that is within the bounds of all lanes. An empty result may begin anywhere.
  RowRange all_in(RowRange keys) const {
    Index const from = std::clamp(all.begin, keys.begin, keys.end);
    return {from, std::clamp(all.end, from, keys.end)};
  }

  /// True if `keys` are within the bounds of all lanes.
  bool covers(RowRange keys) const { return all.begin <= keys.begin && keys.end <= all.end; }
};

/// The lanes' bounds within a key block, as vectors that are compared with the index of a key.
template <class A>
struct BlockBounds {
  Vector<A> begin[Blocking<A>::panel_vectors], end[Blocking<A>::panel_vectors];

  BlockBounds(PanelKeys<A> const& keys, Index block_begin) {
    auto const convert = [&](Index const* bounds, Vector<A>* to) {
      A places[Blocking<A>::panel];
      for (int lane = 0; lane < Blocking<A>::panel; ++lane)
        places[lane] = static_cast<A>(std::clamp<Index>(bounds[lane] - block_begin, 0, Blocking<A>::key_block));
      for (int v = 0; v < Blocking<A>::panel_vectors; ++v) to[v] = Vector<A>::load(places + v * Vector<A>::lanes);
    };
    convert(keys.begin, begin);
    convert(keys.end, end);
  }

  /// Lanes of vector v that see key j of the block.
  [[gnu::always_inline]] Lanes<A> see(int v, Vector<A> j) const { return less_or_equal(begin[v], j) & less(j, end[v]); }
};

/// Visible lanes of the rows of a block by their bounds, for multiply_vectors(). Row 0 belongs to key `first` of the
/// block.
template <class A>
struct SeenByBounds {
  BlockBounds<A> const* bounds;
  Index first;

  SeenByBounds from(Index row) const { return {bounds, first + row}; }
  [[gnu::always_inline]] auto of_rows(Index row) const {
    SeenByBounds const group = from(row);
    return [group](int r, int v) __attribute__((always_inline)) {
      return group.bounds->see(v, Vector<A>::of(static_cast<A>(group.first + r)));
    };
  }
};

/// Keys [begin, end) of the key block that begins at key block_begin of the step. Row r of a block of scores belongs to
/// key `first` + r of the key block.
struct BlockKeys {
  Index block_begin, first, begin, end;

  /// The part of `keys` that lies in the key block that begins at `block_begin`.
  static BlockKeys of(Index block_begin, RowRange keys) {
    constexpr Index size = Blocking<float>::key_block;  // the same for all types
    return {block_begin, 0, std::max(keys.begin - block_begin, Index{0}), std::min(keys.end - block_begin, size)};
  }

  Index row(Index j) const { return j - first; }
  Index key(Index j) const { return block_begin + j; }

  /// The key of the block, within [first, end], from which on the first half of the panel sees none, or a packed
  /// group's rows later at most: with those that follow only the second half is multiplied.
  template <class E, class A>
  Index first_half_end(PanelKeys<A> const& seen) const {
    using G = PackedGroup<E>;
    return G::halves ? std::clamp(G::rows_padded(seen.first_half_end - block_begin), first, end) : end;
  }
};

/// True if the positions of the key rows `keys` are consecutive numbers.
inline bool are_consecutive(std::span<Index const> positions, RowRange keys) {
  Index const* const first = positions.data() + keys.begin;
  Index differences = 0;
  for (Index i = 0; i < keys.size(); ++i) differences |= first[i] - first[0] - i;
  return differences == 0;
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
