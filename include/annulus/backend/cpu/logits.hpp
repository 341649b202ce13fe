#pragma once
// The keys that each lane of a panel sees; and logits of a panel and a key block: their products with soft cap, bias
// and mask, and the factors of dropout.

#include <algorithm>
#include <limits>

#include "annulus/backend/cpu/call.hpp"
#include "annulus/backend/cpu/extents.hpp"
#include "annulus/backend/cpu/simd/exponential.hpp"
#include "annulus/backend/cpu/workspace.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Key rows of the step, within one tile, that the lanes of a panel see.
template <class A>
struct PanelKeys {
  static constexpr int width = Blocking<A>::panel;

  Index begin[width], end[width];  ///< bounds of each lane; empty for lanes outside the tile
  RowRange any, all;               ///< hull of the keys seen by any lane; keys seen by all lanes
  bool each = false;               ///< within the bounds, Step::visible decides pair by pair

  /// Sets all members for the part of the panel that lies in `tile`.
  template <class T>
  void find(HostStep<T> const& step, annulus::detail::StepDocuments const& documents, Tile const& tile,
            QueryPanel<A> const& panel) {
    any = {};
    all = {std::numeric_limits<Index>::min(), std::numeric_limits<Index>::max()};
    each = false;
    Index known = -1;
    annulus::detail::KeyBounds bounds;
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
        any = annulus::detail::hull(any, bounds.rows);
        each = each || bounds.each;
      }
      all = annulus::detail::intersection(all, bounds.rows);
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

/// Position of the softmax scale in the computation. Both passes compute logits in the same way, to the bit, so that a
/// recomputed weight fits the log-sum-exp however large the logits and their rounding errors are.
template <class A>
struct LogitUnits {
  A query_scale = A(1);    ///< applied to queries when they are packed
  A product_scale = A(1);  ///< applied to products by finish_logits, before the soft cap
  A weight_scale = A(1);   ///< applied to scores by the exponential; positive
  bool finished = true;    ///< scores need finish_logits for the mask alone

  template <class T>
  static LogitUnits of(HostStep<T> const& step) {
    constexpr bool exact_queries = is_pair<PackedElement<T>>;
    bool const plain = step.rules.logit_softcap == 0 && !step.bias.data();
    A const scale = static_cast<A>(step.softmax_scale());
    LogitUnits units;
    if (!exact_queries)
      units.query_scale = scale;
    else if (plain && scale > A(0))
      units.weight_scale = scale;
    else
      units.product_scale = scale;
    units.finished = plain && units.product_scale == A(1);
    return units;
  }
};

/// Keys [begin, end) of the key block that begins at key block_begin of the step. Row r of a block of scores belongs to
/// key `first` + r of the key block.
struct BlockRows {
  Index block_begin, first, begin, end;

  /// The part of `keys` that lies in key block `block`.
  static BlockRows of(Index block, RowRange keys) {
    constexpr Index size = Blocking<float>::key_block;  // the same for all types
    return {block * size, 0, std::max(keys.begin - block * size, Index{0}), std::min(keys.end - block * size, size)};
  }

  Index row(Index j) const { return j - first; }
  Index key(Index j) const { return block_begin + j; }
};

/// Calls function(lane, begin, end) for each lane, with the range of keys in `rows` that it may see, unless empty.
template <class A, class Function>
void for_each_pair(QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockRows const& rows, Function&& function) {
  for (int lane = 0; lane < panel.count; ++lane) {
    Index const begin = std::max(rows.begin, keys.begin[lane] - rows.block_begin);
    Index const end = std::min(rows.end, keys.end[lane] - rows.block_begin);
    if (begin < end) function(lane, begin, end);
  }
}

/// Sets block[row][lane] to value_of(lane)(key position) for all pairs within the lanes' bounds, and to zero in the
/// lanes that have no query: blocks that need no mask read them too.
template <class T, class A, class ValueOf>
void gather(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockRows const& rows,
            A* block, ValueOf&& value_of) {
  constexpr Index width = Blocking<A>::panel;
  for (Index j = rows.begin; panel.count < width && j < rows.end; ++j)
    std::fill(block + rows.row(j) * width + panel.count, block + (rows.row(j) + 1) * width, A(0));
  for_each_pair(panel, keys, rows, [&](int lane, Index begin, Index end) {
    auto value = value_of(lane);
    for (Index j = begin; j < end; ++j)
      block[rows.row(j) * width + lane] = value(step.key_positions[static_cast<std::size_t>(rows.key(j))]);
  });
}

/// Gathers the factors of dropout: 1 / (1 - probability), or 0 for pairs that dropout drops.
template <class T, class A>
void gather_kept(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockRows const& rows,
                 A* kept) {
  gather(step, panel, keys, rows, kept, [&](int lane) {
    return [scale = static_cast<A>(step.rules.dropout.keep_scale()),
            row = DropoutRow(step.rules.dropout, panel.rows->batch, panel.head(lane),
                             step.query_positions[static_cast<std::size_t>(panel.query(lane))])](Index key) mutable {
      return row.keeps(key) ? scale : A(0);
    };
  });
}

/// Scratch blocks, [key_block][panel] each, for one panel and key block; null where no option needs them.
template <class A>
struct UnitBlocks {
  A* scores = nullptr;
  A* bias = nullptr;
  A* slope = nullptr;  ///< of the soft cap: d logit / d (product * scale)
  A* kept = nullptr;   ///< factors of dropout

  template <class T>
  static UnitBlocks of(Arena& arena, HostStep<T> const& step, Pass pass) {
    auto const block_if = [&](bool needed) {
      return needed ? arena.take<A>(Index{Blocking<A>::key_block} * Blocking<A>::panel) : nullptr;
    };
    return {block_if(true), block_if(step.bias.data() != nullptr),
            block_if(step.rules.logit_softcap > 0 && pass == Pass::backward), block_if(step.rules.dropout.active())};
  }

  UnitBlocks from_row(Index row) const {
    auto const moved = [&](A* block) { return block ? block + row * Blocking<A>::panel : nullptr; };
    return {moved(scores), moved(bias), moved(slope), moved(kept)};
  }
};

/// Replaces products by logits, in the units of `units`; -inf for invisible pairs. Raises largest[v], one for each
/// vector of the panel, to the largest logit of each lane.
template <class T, class A>
[[gnu::noinline]] void finish_logits(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys,
                                     BlockRows const& rows, UnitBlocks<A> const& blocks, LogitUnits<A> const& units,
                                     Vector<A>* largest) {
  using V = Vector<A>;
  using B = Blocking<A>;
  V const product_scale = V::of(units.product_scale);
  V const softcap = V::of(static_cast<A>(step.rules.logit_softcap)),
          inverse = V::of(A(1) / static_cast<A>(step.rules.logit_softcap));
  V const nothing = V::of(empty_row<A>);
  bool const capped = step.rules.logit_softcap > 0, biased = step.bias.data() != nullptr,
             tested = !keys.covers({rows.key(rows.begin), rows.key(rows.end)});
  if (biased)
    gather(step, panel, keys, rows, blocks.bias, [&](int lane) {
      T const* const row =
          step.bias.data() + step.bias.offset(panel.rows->batch, panel.head(lane), panel.query(lane), 0);
      return [row, stride = step.bias.stride(3)](Index key) { return static_cast<A>(row[key * stride]); };
    });
  BlockBounds<A> const bounds(keys, rows.block_begin);
  for (Index j = rows.begin; j < rows.end; ++j) {
    V const number = V::of(static_cast<A>(j));
    for (int v = 0; v < B::panel_vectors; ++v) {
      Index const place = rows.row(j) * B::panel + v * B::lanes;
      V x = V::load(blocks.scores + place) * product_scale;
      if (capped) {
        HyperbolicTangent<A> const tangent = hyperbolic_tangent(x * inverse);
        x = softcap * tangent.value;
        if (blocks.slope) tangent.slope.store(blocks.slope + place);
      }
      if (biased) x = x + V::load(blocks.bias + place);
      if (tested) x = select(bounds.see(v, number), x, nothing);
      x.store(blocks.scores + place);
      if (!keys.each) largest[v] = larger(x, largest[v]);
    }
  }
  if (!keys.each) return;
  for_each_pair(panel, keys, rows, [&](int lane, Index begin, Index end) {
    for (Index j = begin; j < end; ++j)
      if (!step.visible(panel.rows->batch, panel.head(lane), panel.query(lane), rows.key(j)))
        blocks.scores[rows.row(j) * B::panel + lane] = empty_row<A>;
  });
  for (Index j = rows.begin; j < rows.end; ++j)
    for (int v = 0; v < B::panel_vectors; ++v)
      largest[v] = larger(V::load(blocks.scores + rows.row(j) * B::panel + v * B::lanes), largest[v]);
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
