#pragma once
// Where a panel of queries meets a block of keys: probabilities are computed again from the log-sum-exp, and five
// products and one exponential give the shares of dq, dk and dv.

#include "annulus/backend/cpu/backward_panel.hpp"
#include "annulus/backend/cpu/products.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

namespace detail {

/// From logits and products of dout and values, [rows][panel] each, to probabilities and gradients of the logits.
template <class A>
[[gnu::noinline]] void differentiate(A* logits, A* dweights, Index rows, A const* lse_high, A const* lse_low,
                                   A const* delta) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V high[vectors], low[vectors], d[vectors];
  for (int v = 0; v < vectors; ++v) {
    high[v] = V::load(lse_high + v * lanes);
    low[v] = V::load(lse_low + v * lanes);
    d[v] = V::load(delta + v * lanes);
  }
#pragma GCC unroll 2
  for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      Index const place = j * panel + v * lanes;
      V const weight = exponential2(V::load(logits + place) - high[v] - low[v]);
      weight.store(logits + place);
      (weight * (V::load(dweights + place) - d[v])).store(dweights + place);
    }
}

/// The same where some pairs may not be visible (a logit of -inf), or dropout takes part: kept is null or a factor for
/// each pair, and logits become probabilities times that factor.
template <class A>
[[gnu::noinline]] void differentiate_with_care(A* logits, A* dweights, A const* kept, Index rows, A const* lse_high, A const* lse_low,
                                   A const* delta) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V const nothing = V::of(empty_row<A>);
  for (Index j = 0; j < rows; ++j)
    for (int v = 0; v < vectors; ++v) {
      Index const place = j * panel + v * lanes;
      V const logit = V::load(logits + place), dweight = V::load(dweights + place);
      auto const hidden = less_or_equal(logit, nothing);
      V const factor = kept ? select(hidden, V::zero(), V::load(kept + place)) : V::of(A(1));
      V const weight = select(hidden, V::zero(), exponential2(logit - V::load(lse_high + v * lanes) - V::load(lse_low + v * lanes)));
      (weight * factor).store(logits + place);
      // Of a hidden pair nothing is used: its values may be NaN.
      V const gradient = weight * (factor * dweight - V::load(delta + v * lanes));
      select(hidden, V::zero(), gradient).store(dweights + place);
    }
}

}  // namespace detail

template <class T>
class BackwardUnit {
  using A = Accumulator<T>;
  using B = Blocking<A>;
  using V = Vector<A>;

 public:
  BackwardUnit() = default;
  BackwardUnit(Dealer& dealer, HostStep<T> const& step) {
    constexpr Index block = Index{B::key_block} * B::panel;
    dweights_ = dealer.take<A>(block);
    blocks_.scores = dealer.take<A>(block);
    if (step.bias.data()) blocks_.bias = dealer.take<A>(block);
    if (step.logit_softcap > 0) blocks_.slope = dealer.take<A>(block);
    if (step.dropout.active()) blocks_.kept = dealer.take<A>(block);
  }

  /// rows: the keys of the block, counted from its first, that any lane of the panel sees.
  void meet(HostStep<T> const& step, GradientExtents<A> const& extents, BackwardPanel<T>& queries, PanelKeys<A> const& seen,
            KeyBlock<T>& keys, BlockRows rows, HeadRows<T const> const& key_operand, TensorView<A, 4> const& dbias) {
    rows.first = rows.begin / B::micro_rows * B::micro_rows;
    Index const row_count = B::rows_padded(rows.end) - rows.first, count = rows.end - rows.begin;
    Index const lead = rows.row(rows.begin) * B::panel;
    A* const weights = blocks_.scores;
    multiply_rows<false>(keys.key_groups + rows.first * extents.head_dim, row_count, queries.queries, extents.head_dim, weights, nothing());
    multiply_rows<false>(keys.value_groups + rows.first * extents.value_dim, row_count, queries.douts, extents.value_dim, dweights_, nothing());

    bool const plain = step.logit_softcap == 0 && !step.bias.data() && !step.dropout.active();
    if (plain && seen.covers({rows.key(rows.begin), rows.key(rows.end)})) {
      detail::differentiate(weights + lead, dweights_ + lead, count, queries.lse_high, queries.lse_low, queries.delta);
    } else {
      V largest[B::panel_vectors];
      for (V& vector : largest) vector = V::zero();
      finish_logits(step, queries.panel, seen, rows, blocks_, LogitUnits<A>::of(step).unit, largest);
      if (step.dropout.active()) gather_kept(step, queries.panel, seen, rows, blocks_.kept);
      detail::differentiate_with_care(weights + lead, dweights_ + lead, blocks_.kept ? blocks_.kept + lead : nullptr, count,
                                      queries.lse_high, queries.lse_low, queries.delta);
      if (dbias.data()) add_bias_gradient(step, queries.panel, seen, rows, dbias);
      if (blocks_.slope)
        for (Index e = lead; e < lead + count * B::panel; ++e)
          dweights_[e] = dweights_[e] == A(0) ? A(0) : dweights_[e] * blocks_.slope[e];
    }
    // The groups of rows at both ends may hold keys that no lane sees.
    for (A* block : {weights, dweights_}) {
      std::fill_n(block, lead, A(0));
      std::fill(block + lead + count * B::panel, block + row_count * B::panel, A(0));
    }

    Index const dim = extents.head_dim_padded(), value_dim = extents.value_dim_padded();
    add_product_of_rows<false, A>(weights, {queries.dout_rows, B::panel}, B::panel, {keys.dv, B::key_block, rows.first}, row_count, value_dim);
    add_product_of_rows<false, A>(dweights_, {queries.query_rows, B::panel}, B::panel, {keys.dk, B::key_block, rows.first}, row_count, dim);
    add_product_of_rows<true, A>(dweights_ + lead, {keys.key_rows, B::key_block, rows.begin}, count, {queries.dq, B::panel}, B::panel, dim);

    A const scale = static_cast<A>(step.softmax_scale);
    queries.not_finite.for_each_in(0, B::panel, [&](Index lane) { add_query_by_hand(extents, queries, keys, rows, lane, scale); });
    keys.not_finite.for_each_in(rows.begin, rows.end, [&](Index j) {
      T const* const row = key_operand.row(rows.key(j));
      for (Index lane = 0; lane < B::panel; ++lane)
        if (A const gradient = dweights_[rows.row(j) * B::panel + lane]; gradient != A(0))
          add_row(queries.dq, Index{B::panel}, lane, row, key_operand.dim_stride, extents.head_dim,
                  gradient * scale);
    });
  }

 private:
  static V* nothing() { return nullptr; }

  void add_bias_gradient(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& seen, BlockRows const& rows,
                         TensorView<A, 4> const& dbias) const {
    detail::for_each_pair(panel, seen, rows, [&](int lane, Index begin, Index end) {
      for (Index j = begin; j < end; ++j)
        dbias(panel.rows->batch, panel.head(lane), panel.query(lane), step.key_positions[static_cast<std::size_t>(rows.key(j))]) +=
            dweights_[rows.row(j) * B::panel + lane];
    });
  }

  static void add_row(A* strips, Index capacity, Index i, T const* row, Index stride, Index dim, A factor) {
    for_each_strip<A>(B::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      constexpr Index width = Width * B::lanes;
      for (Index d = begin; d < std::min(begin + width, dim); ++d)
        strips[begin * capacity + i * width + d - begin] += factor * static_cast<A>(row[d * stride]);
    });
  }

  /// A query whose row holds NaN or infinity: its share goes to the keys that it sees, and to no others.
  void add_query_by_hand(GradientExtents<A> const& extents, BackwardPanel<T> const& queries, KeyBlock<T>& keys, BlockRows const& rows, Index lane,
                         A scale) const {
    bool const q_is_zeros = !all_finite<A>(queries.query_row[lane], queries.query_stride, extents.head_dim);
    bool const dout_is_zeros = !all_finite<A>(queries.dout_row[lane], queries.dout_stride, extents.value_dim);
    for (Index j = rows.begin; j < rows.end; ++j) {
      A const weight = blocks_.scores[rows.row(j) * B::panel + lane], gradient = dweights_[rows.row(j) * B::panel + lane];
      if (dout_is_zeros && weight != A(0))
        add_row(keys.dv, Index{B::key_block}, j, queries.dout_row[lane], queries.dout_stride, extents.value_dim, weight);
      if (q_is_zeros && gradient != A(0))
        add_row(keys.dk, Index{B::key_block}, j, queries.query_row[lane], queries.query_stride, extents.head_dim, gradient * scale);
    }
  }

  A* dweights_ = nullptr;
  UnitBlocks<A> blocks_{};
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
