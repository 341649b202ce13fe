#pragma once
// What happens to the scores of a panel and a block of keys where they are not plain products: soft cap, bias, mask; and
// which weights dropout keeps.

#include <limits>

#include "annulus/backend/cpu/query_panel.hpp"
#include "annulus/backend/cpu/simd/exponential.hpp"
#include "annulus/backend/cpu/simd/operand.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Where the softmax scale comes in. The forward and the backward pass make logits in the same way, to the bit: then a
/// weight that is computed again fits the log-sum-exp, however large the logits and their rounding errors are.
template <class A>
struct LogitUnits {
  A query_scale = A(1);    ///< what queries are multiplied by when they are packed
  A product_scale = A(1);  ///< what finish_logits multiplies products by before the soft cap
  A weight_scale = A(1);   ///< what makes logits of what is weighed; positive
  bool finished = true;    ///< products need finish_logits for nothing but the mask

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

/// Keys [begin, end) of a block of the step's keys that begins at block_begin. Row r of a block of scores is key
/// `first` + r of the block of keys.
struct BlockRows {
  Index block_begin, first, begin, end;

  Index row(Index j) const { return j - first; }
  Index key(Index j) const { return block_begin + j; }
};

namespace detail {

/// Calls function(lane, begin, end) with the keys that each lane may see.
template <class A, class Function>
void for_each_pair(QueryPanel<A> const& panel, PanelKeys<A> const& keys, BlockRows const& rows, Function&& function) {
  for (int lane = 0; lane < panel.count; ++lane) {
    Index const begin = std::max(rows.begin, keys.begin[lane] - rows.block_begin);
    Index const end = std::min(rows.end, keys.end[lane] - rows.block_begin);
    if (begin < end) function(lane, begin, end);
  }
}

/// Zeros in the lanes that have no query, where nothing tests what is visible.
template <class A>
void clear_idle_lanes(QueryPanel<A> const& panel, BlockRows const& rows, A* block) {
  for (Index j = rows.begin; panel.count < Blocking<A>::panel && j < rows.end; ++j)
    std::fill(block + rows.row(j) * Blocking<A>::panel + panel.count, block + (rows.row(j) + 1) * Blocking<A>::panel,
              A(0));
}

}  // namespace detail

/// bias[row][lane] of all pairs within the lanes' bounds.
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

/// kept[row][lane] = 1 / (1 - probability), or 0 where dropout takes the pair out.
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

/// Blocks of a panel's width that a unit of work needs; those that an option does not need are null.
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

/// Turns products into logits, in the units of the step; -inf for pairs that are not visible. Lifts largest[v], one for
/// each vector of the panel.
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
