#pragma once
// Logits of a query panel and a key block: their products with soft cap, bias and mask; and the factors of dropout.

#include <limits>

#include "annulus/backend/cpu/query_panel.hpp"
#include "annulus/backend/cpu/simd/exponential.hpp"
#include "annulus/backend/cpu/simd/operand.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

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
    bool const plain = step.logit_softcap == 0 && !step.bias.data();
    A const scale = static_cast<A>(step.softmax_scale);
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

  Index row(Index j) const { return j - first; }
  Index key(Index j) const { return block_begin + j; }
};

namespace detail {

/// Calls function(lane, begin, end) for each lane, with the range of keys in `rows` that it may see, unless empty.
template <class A, class Function>
void for_each_pair(QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockRows const& rows, Function&& function) {
  for (int lane = 0; lane < panel.count; ++lane) {
    Index const begin = std::max(rows.begin, keys.begin[lane] - rows.block_begin);
    Index const end = std::min(rows.end, keys.end[lane] - rows.block_begin);
    if (begin < end) function(lane, begin, end);
  }
}

/// Zeroes the lanes that have no query: blocks that need no mask read them too.
template <class A>
void clear_idle_lanes(QueryPanel<A> const& panel, BlockRows const& rows, A* block) {
  for (Index j = rows.begin; panel.count < Blocking<A>::panel && j < rows.end; ++j)
    std::fill(block + rows.row(j) * Blocking<A>::panel + panel.count, block + (rows.row(j) + 1) * Blocking<A>::panel,
              A(0));
}

}  // namespace detail

/// Gathers the additive bias into bias[row][lane], for all pairs within the lanes' bounds.
template <class T, class A>
void gather_bias(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockRows const& rows,
                 A* bias) {
  Index const stride = step.bias.stride(3);
  detail::clear_idle_lanes(panel, rows, bias);
  detail::for_each_pair(panel, keys, rows, [&](int lane, Index begin, Index end) {
    T const* const row = step.bias.data() + step.bias.offset(panel.rows->batch, panel.head(lane), panel.query(lane), 0);
    A* const column = bias + lane;
    for (Index j = begin; j < end; ++j)
      column[rows.row(j) * Blocking<A>::panel] =
          static_cast<A>(row[step.key_positions[static_cast<std::size_t>(rows.key(j))] * stride]);
  });
}

/// Sets kept[row][lane] to 1 / (1 - probability), or to 0 for pairs that dropout drops, within the lanes' bounds.
template <class T, class A>
void gather_kept(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockRows const& rows,
                 A* kept) {
  A const scale = static_cast<A>(step.dropout.keep_scale());
  detail::clear_idle_lanes(panel, rows, kept);
  detail::for_each_pair(panel, keys, rows, [&](int lane, Index begin, Index end) {
    DropoutRow row(step.dropout, panel.rows->batch, panel.head(lane),
                   step.query_positions[static_cast<std::size_t>(panel.query(lane))]);
    for (Index j = begin; j < end; ++j)
      kept[rows.row(j) * Blocking<A>::panel + lane] =
          row.keeps(step.key_positions[static_cast<std::size_t>(rows.key(j))]) ? scale : A(0);
  });
}

/// Scratch blocks, [key_block][panel] each, for one panel and key block; null where no option needs them.
template <class A>
struct UnitBlocks {
  A* scores = nullptr;
  A* bias = nullptr;
  A* slope = nullptr;  ///< of the soft cap: d logit / d (product * scale)
  A* kept = nullptr;   ///< factors of dropout

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
  V const softcap = V::of(static_cast<A>(step.logit_softcap)),
          inverse = V::of(A(1) / static_cast<A>(step.logit_softcap));
  V const nothing = V::of(-std::numeric_limits<A>::infinity());
  bool const capped = step.logit_softcap > 0, biased = step.bias.data() != nullptr,
             tested = !keys.covers({rows.key(rows.begin), rows.key(rows.end)});
  if (biased) gather_bias(step, panel, keys, rows, blocks.bias);
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
  detail::for_each_pair(panel, keys, rows, [&](int lane, Index begin, Index end) {
    for (Index j = begin; j < end; ++j)
      if (!step.visible(panel.rows->batch, panel.head(lane), panel.query(lane), rows.key(j)))
        blocks.scores[rows.row(j) * B::panel + lane] = -std::numeric_limits<A>::infinity();
  });
  for (Index j = rows.begin; j < rows.end; ++j)
    for (int v = 0; v < B::panel_vectors; ++v)
      largest[v] = larger(V::load(blocks.scores + rows.row(j) * B::panel + v * B::lanes), largest[v]);
}

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
