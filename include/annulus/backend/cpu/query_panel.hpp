#pragma once
// Panels of queries, computed together with one query row per SIMD lane, and the keys that each lane sees.

#include <algorithm>
#include <limits>

#include "annulus/backend/cpu/any_predicate.hpp"
#include "annulus/backend/cpu/blocking.hpp"
#include "annulus/backend/cpu/prefetch_queue.hpp"
#include "annulus/backend/visible_keys.hpp"

namespace annulus::cpu {

inline namespace ANNULUS_CPU_TARGET {

/// Queries of all query heads of one kv head, as one list of rows: row f is query f / group of query head
/// kv_head * group + f % group. Panels of these rows read the same keys; rows of the same position are neighbours.
struct GroupRows {
  Index batch = 0, kv_head = 0, group = 1, queries = 0;

  Index count() const { return queries * group; }
  Index query(Index row) const { return row / group; }
  Index head(Index row) const { return kv_head * group + row % group; }
};

/// Rows [first, first + count) of a group, one per lane; lanes from `count` on are idle.
template <class A>
struct QueryPanel {
  static constexpr int width = Blocking<A>::panel;

  GroupRows const* rows = nullptr;
  Index first = 0;
  int count = 0;

  QueryPanel() = default;
  QueryPanel(GroupRows const& group_rows, Index panel)
      : rows(&group_rows),
        first(panel * width),
        count(static_cast<int>(std::min<Index>(width, group_rows.count() - first))) {}

  Index query(int lane) const { return rows->query(first + lane); }
  Index head(int lane) const { return rows->head(first + lane); }
};

/// Adds the panel's rows of a tensor [batch, sequence, heads, dim] to the prefetch queue.
template <class A, class T>
void expect_rows(QueryPanel<A> const& panel, TensorView<T, 4> const& of, Index dim, PrefetchQueue& ahead) {
  for (int lane = 0; lane < panel.count; ++lane)
    ahead.add(of.data() + of.offset(panel.rows->batch, panel.query(lane), panel.head(lane), 0), of.stride(axis::dim),
              dim);
}

/// Key rows of the step, within one tile, that the lanes of a panel see.
template <class A>
struct PanelKeys {
  static constexpr int width = Blocking<A>::panel;

  Index begin[width], end[width];  ///< bounds of each lane; empty for lanes outside the tile
  RowRange any, all;               ///< hull of the keys seen by any lane; keys seen by all lanes
  bool each = false;               ///< within the bounds, Step::visible decides pair by pair

  /// Sets all members for the part of the panel that lies in `tile`.
  template <class T>
  void find(HostStep<T> const& step, StepDocuments const& documents, Tile const& tile, QueryPanel<A> const& panel) {
    any = {};
    all = {std::numeric_limits<Index>::min(), std::numeric_limits<Index>::max()};
    each = false;
    Index known = -1;
    KeyBounds bounds;
    for (int lane = 0; lane < panel.count; ++lane) {
      Index const query = panel.query(lane) - tile.query_begin;
      if (query < 0 || query >= tile.query_count) {
        bounds = {};
      } else if (query != known) {
        bounds = documents.bounds(step, tile, panel.rows->batch, query);
        known = query;
      }
      begin[lane] = bounds.rows.begin;
      end[lane] = bounds.rows.end;
      if (!bounds.rows.empty()) {
        any = hull(any, bounds.rows);
        each = each || bounds.each;
      }
      all = {std::max(all.begin, bounds.rows.begin), std::min(all.end, bounds.rows.end)};
    }
    for (int lane = panel.count; lane < width; ++lane) begin[lane] = end[lane] = 0;
  }

  /// The part of `keys` that all lanes see, provided that `each` is false. An empty result may begin anywhere.
  RowRange all_in(RowRange keys) const {
    Index const from = std::clamp(all.begin, keys.begin, keys.end);
    return {from, std::clamp(all.end, from, keys.end)};
  }

  /// True if all lanes see all of `keys`, so that they need no mask.
  bool covers(RowRange keys) const { return !each && all.begin <= keys.begin && keys.end <= all.end; }
};

/// The lanes' bounds within a key block, as vectors that are compared with the index of a key.
template <class A>
struct BlockBounds {
  Vector<A> begin[Blocking<A>::panel_vectors], end[Blocking<A>::panel_vectors];

  BlockBounds(PanelKeys<A> const& keys, Index block_begin) {
    constexpr int width = Blocking<A>::panel;
    A first[width], last[width];
    for (int lane = 0; lane < width; ++lane) {
      first[lane] = static_cast<A>(std::clamp<Index>(keys.begin[lane] - block_begin, 0, Blocking<A>::key_block));
      last[lane] = static_cast<A>(std::clamp<Index>(keys.end[lane] - block_begin, 0, Blocking<A>::key_block));
    }
    for (int v = 0; v < Blocking<A>::panel_vectors; ++v) {
      begin[v] = Vector<A>::load(first + v * Vector<A>::lanes);
      end[v] = Vector<A>::load(last + v * Vector<A>::lanes);
    }
  }

  /// Lanes of vector v that see key j of the block.
  [[gnu::always_inline]] Lanes<A> see(int v, Vector<A> j) const { return less_or_equal(begin[v], j) & less(j, end[v]); }
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
