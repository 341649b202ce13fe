#pragma once
// Gradients of one query panel and one key block: probabilities are recomputed from the log-sum-exp, and five products
// and one exponential give the shares of dq, dk and dv.

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/weigh.hpp"
#include "annulus/backend/cpu/workspace.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// A block of keys: its packed operands, and its gradients, which accumulate over panels.
template <class T>
struct KeyBlock {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;
  /// Rows of a block, and the same in packed elements.
  static constexpr Index rows = B::key_block, depth = rows / Operand<E>::depth;

  KeyBlock(Arena& arena, StepExtents<E> const& extents)
      : key_groups(arena.take<E>(rows * extents.head.packed())),
        value_groups(arena.take<E>(rows * extents.value.packed())),
        key_columns(arena.take<E>(depth * extents.head.grouped())),
        dk(arena.take<A>(rows * extents.head.padded())),
        dv(arena.take<A>(rows * extents.value.padded())) {}

  /// Packs keys [begin, begin + count) of the step and clears the gradients.
  void load(HeadRows<T const> const& k, HeadRows<T const> const& v, Index begin, Index count,
            StepExtents<E> const& extents) {
    pack_row_groups(k, begin, count, extents.head.size, key_groups);
    pack_row_groups(v, begin, count, extents.value.size, value_groups);
    pack_column_groups(k, begin, count, extents.head.size, key_columns, not_finite);
    not_finite_operands = not_finite;
    for (Index j = 0; j < count; ++j)
      finite_row(v.row(begin + j), v.dim_stride, extents.value.size, j, not_finite_operands);
    std::fill_n(dk, rows * extents.head.padded(), A(0));
    std::fill_n(dv, rows * extents.value.padded(), A(0));
  }

  E *key_groups, *value_groups, *key_columns;
  A *dk, *dv;                  ///< in strips (StripRows)
  RowSet not_finite;           ///< rows of keys that key_columns holds as zeros
  RowSet not_finite_operands;  ///< rows whose key or value is not finite: the product with a row of zeros is NaN
};

/// A panel of queries: packed queries and douts, statistics of the rows, and dq.
template <class T>
class BackwardPanel {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;

 public:
  /// Rows of a panel, and the same in packed elements.
  static constexpr Index rows = B::panel, depth = rows / Operand<E>::depth;

  BackwardPanel(Arena& arena, StepExtents<E> const& extents)
      : queries(arena.take<E>(rows * extents.head.packed())),
        douts(arena.take<E>(rows * extents.value.packed())),
        query_rows(arena.take<E>(depth * extents.head.padded())),
        dout_rows(arena.take<E>(depth * extents.value.padded())),
        dq(arena.take<A>(rows * extents.head.grouped())) {}

  /// Packs the rows of `loaded` and reads their dq, which store_gradient() writes back.
  void load(QueryPanel<A> const& loaded, GradientCall<T> const& call, StepExtents<E> const& extents) {
    panel = loaded;
    auto const& [q, dout, gradient] = std::tie(call.operands.q, call.backward.dout, call.gradients.dq);
    // Not in the loop below: GCC 12 at -O3 splits that loop by assignment and would write the null pointers last.
    std::fill_n(query_row, rows, nullptr);
    std::fill_n(dout_row, rows, nullptr);
    std::fill_n(dq_row, rows, nullptr);
    // A masked row, and a lane without a row, is a row of zeros with weight e^-inf = 0 for every key.
    std::fill_n(lse, rows, std::numeric_limits<A>::infinity());
    std::fill_n(remainder, rows, A(0));
    std::fill_n(delta, rows, A(0));
    for (int lane = 0; lane < panel.count; ++lane) {
      A const row_lse = panel.element(call.backward.lse, lane);
      if (row_lse == empty_row<A>) continue;
      lse[lane] = row_lse;
      remainder[lane] = call.backward.remainder(panel.rows->batch, panel.head(lane), panel.query(lane));
      delta[lane] = panel.element(call.backward.delta, lane);
      query_row[lane] = panel.row(q, lane);
      dout_row[lane] = panel.row(dout, lane);
      dq_row[lane] = panel.row(gradient, lane);
    }
    query_stride = q.stride(axis::dim);
    dout_stride = dout.stride(axis::dim);
    RowSet not_finite_douts;
    pack_panel(query_row, query_stride, extents.head.size, LogitUnits<A>::of(call.step).query_scale, queries);
    pack_panel(dout_row, dout_stride, extents.value.size, A(1), douts);
    pack_strips(query_row, query_stride, rows, extents.head.size, query_rows, not_finite);
    pack_strips(dout_row, dout_stride, rows, extents.value.size, dout_rows, not_finite_douts);
    not_finite |= not_finite_douts;
    pack_panel<A, A>(dq_row, 1, extents.head.size, A(1), dq);
    std::fill_n(dq + extents.head.size * rows, (extents.head.grouped() - extents.head.size) * rows, A(0));
  }

  void store_gradient(StepExtents<E> const& extents) const {
    A const nothing[rows] = {};
    unpack_panel(dq, extents.head.size, nothing, dq_row);
  }

  QueryPanel<A> panel;
  alignas(64) A lse[rows], remainder[rows], delta[rows];
  E *queries, *douts;         ///< [dim][panel]; queries times LogitUnits::query_scale
  E *query_rows, *dout_rows;  ///< in strips
  A* dq;                      ///< [head_dim][panel]
  RowSet not_finite;          ///< rows that query_rows or dout_rows holds as zeros
  T const *query_row[rows], *dout_row[rows];
  A* dq_row[rows];
  Index query_stride = 1, dout_stride = 1;
};

/// Statistics of the rows of a panel, one value per lane, and scales of the step.
template <class A>
struct RowTerms {
  A const *lse, *remainder, *delta;
  A weight_scale;    ///< multiplies products to give logits
  A gradient_scale;  ///< multiplies gradients of logits to give those of products of query and key

  /// Function exponent(score, v): probabilities, see numerics/softmax.hpp, are 2 to the power of it.
  template <class Exponent>
  [[gnu::always_inline]] auto exponents() const {
    using V = Vector<A>;
    constexpr int vectors = Blocking<A>::panel_vectors;
    std::array<Exponent, vectors> of;
    std::array<V, vectors> rest;
    for (std::size_t v = 0; v < vectors; ++v) {
      V const rounded = V::load(lse + v * V::lanes);
      of[v] = Exponent(weight_scale, rounded);
      rest[v] = multiply_add(V::load(remainder + v * V::lanes), V::of(log2_of_e<A>), cut_in_base_2(rounded));
    }
    return [ of, rest ](V score, int v) __attribute__((always_inline)) {
      auto const vector = static_cast<std::size_t>(v);
      return of[vector](score) - rest[vector];
    };
  }
};

/// Replaces products of query and key by probabilities, and products of dout and value by gradients of the products of
/// query and key; [rows][panel] each. All pairs must be visible.
template <class A>
[[gnu::noinline]] void differentiate(A* products, A* dweights, Index rows, RowTerms<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V delta[vectors];
  for (int v = 0; v < vectors; ++v) delta[v] = V::load(terms.delta + v * lanes);
  V const gradient_scale = V::of(terms.gradient_scale);
  with_exponent<A>(
      any_large(terms.lse), [&]<class Exponent>(std::type_identity<Exponent>) __attribute__((always_inline)) {
        auto const exponent = terms.template exponents<Exponent>();
#pragma GCC unroll 2
        for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) {
            Index const place = j * panel + v * lanes;
            V const weight = exponential2(exponent(V::load(products + place), v));
            weight.store(products + place);
            (weight * gradient_scale * (V::load(dweights + place) - delta[v])).store(dweights + place);
          }
      });
}

/// The same for pairs of which some may be masked (a logit of -inf), with dropout, and with the slope of a soft cap,
/// [rows][panel], unless null. Probabilities are multiplied by the factors of dropout.
template <class A>
[[gnu::noinline]] void differentiate_masked(A* logits, A* dweights, A const* slope, DropoutFactors<A> const& dropout,
                                            Index rows, RowTerms<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V delta[vectors];
  for (int v = 0; v < vectors; ++v) delta[v] = V::load(terms.delta + v * lanes);
  V const nothing = V::of(empty_row<A>), gradient_scale = V::of(terms.gradient_scale);
  with_exponent<A>(
      any_large(terms.lse), [&]<class Exponent>(std::type_identity<Exponent>) __attribute__((always_inline)) {
        auto const exponent = terms.template exponents<Exponent>();
        for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) {
            Index const place = j * panel + v * lanes;
            V const logit = V::load(logits + place);
            V dweight = V::load(dweights + place);
            auto const masked = less_or_equal(logit, nothing);
            V const weight = select(masked, V::zero(), exponential2(exponent(logit, v)));
            V kept = weight;
            if (dropout.kept) {
              kept = dropout.apply(weight, j, v);
              dweight = dropout.apply(dweight, j, v);
            }
            kept.store(logits + place);
            V gradient = weight * gradient_scale * (dweight - delta[v]);
            if (slope) gradient = gradient * V::load(slope + place);
            // Values of a masked pair may be NaN and are not used.
            select(masked, V::zero(), gradient).store(dweights + place);
          }
      });
}

/// Multiplies gradients of logits by `scale` and by the slope of a soft cap, unless null, to give those of products.
template <class A>
[[gnu::noinline]] void scale_gradients(A* gradients, A const* slope, Index count, A scale) {
  using V = Vector<A>;
  for (Index e = 0; e < count; e += V::lanes) {
    V const before = V::load(gradients + e), scaled = before * V::of(scale);
    // The slope of an invisible pair may be NaN; its gradient is 0.
    auto const vanishes = less_or_equal(larger(before, V::zero() - before), V::zero());
    (slope ? select(vanishes, V::zero(), scaled * V::load(slope + e)) : scaled).store(gradients + e);
  }
}

/// Adds the share of a query panel and a key block to dq, dk, dv and dbias.
template <class T>
class BackwardUnit {
  using A = Accumulator<T>;
  using E = BlockElement<T>;
  using B = Blocking<A>;
  using V = Vector<A>;
  using G = PackedGroup<E>;

 public:
  /// Arguments must outlive the object.
  BackwardUnit(Arena& arena, GradientCall<T> const& call, StepExtents<E> const& extents,
               VisibilityCache<T> const& cache)
      : call_(call),
        extents_(extents),
        visibility_cache_(cache),
        units_(LogitUnits<A>::of(call.step)),
        blocks_(UnitBlocks<A>::of(arena, call.step, Pass::backward)),
        dweights_(arena.take<A>(Index{B::key_block} * B::panel)) {
    if constexpr (is_joined<E>)
      for (E** block : {&weight_lanes_, &gradient_lanes_, &gradient_rows_})
        *block = arena.take<E>(Index{B::key_block} * B::panel / Operand<E>::depth);
  }

  /// Adds the gradients of the keys of `rows`, which any lane of the panel sees, counted from the first of the block.
  void meet(BackwardPanel<T>& queries, PanelKeys<A> const& seen, KeyBlock<T>& keys, BlockRows rows,
            HeadRows<T const> const& key_operand, PrefetchQueue& ahead) {
    visibility_ = visibility_cache_.find(call_.step, queries.panel, seen, rows, *blocks_.visible);
    if (visibility_ == Visibility::none) return;
    rows.first = rows.begin / G::rows * G::rows;
    Index const row_count = G::rows_padded(rows.end) - rows.first;
    V* const no_maximum = nullptr;
    PrefetchQueue& during_products = call_.step.bias.data() ? expect_bias(queries.panel, seen, rows) : ahead;
    multiply_rows<false>(keys.key_groups + rows.first * extents_.head.packed(), row_count, queries.queries,
                         extents_.head.packed(), blocks_.scores, no_maximum, during_products);
    multiply_rows<false>(keys.value_groups + rows.first * extents_.value.packed(), row_count, queries.douts,
                         extents_.value.packed(), dweights_, no_maximum, during_products);
    // The products of lanes without a query may be NaN there; their weight is 0.
    for_each_row_in(keys.not_finite_operands, rows.begin, rows.end, [&](Index j) {
      for (Index lane = 0, place = rows.row(j) * B::panel; lane < B::panel; ++lane, ++place)
        if (!queries.query_row[lane]) blocks_.scores[place] = dweights_[place] = A(0);
    });
    differentiate(queries, seen, rows);
    // The packed groups at both ends may hold keys that no lane sees.
    Index const begin = rows.row(rows.begin) * B::panel, end = rows.row(rows.end) * B::panel;
    for (A* block : {blocks_.scores, dweights_}) {
      std::fill(block, block + begin, A(0));
      std::fill(block + end, block + row_count * B::panel, A(0));
    }
    multiply(queries, keys, rows, row_count, ahead);

    for_each_row_in(queries.not_finite, 0, B::panel,
                    [&](Index lane) { add_nonfinite_query(queries, keys, rows, lane); });
    for_each_row_in(keys.not_finite, rows.begin, rows.end, [&](Index j) {
      for (Index lane = 0; lane < B::panel; ++lane)
        if (A const gradient = dweights_[rows.row(j) * B::panel + lane]; gradient != A(0))
          for (Index d = 0; d < extents_.head.size; ++d)
            queries.dq[d * B::panel + lane] +=
                gradient * static_cast<A>(key_operand.row(rows.key(j))[d * key_operand.dim_stride]);
    });
  }

 private:
  /// Lists the rows of bias and dbias that the panel needs for the next key block.
  PrefetchQueue& expect_bias(QueryPanel<A> const& panel, PanelKeys<A> const& seen, BlockRows const& rows) {
    bias_ahead_.clear();
    RowRange const next{rows.key(B::key_block), std::min(rows.key(2 * B::key_block), seen.any.end)};
    BiasRows<T const>(call_.step.bias, panel).expect(bias_ahead_, call_.step.key_positions, next);
    if (call_.gradients.dbias.data())
      BiasRows<A>(call_.gradients.dbias, panel).expect(bias_ahead_, call_.step.key_positions, next);
    return bias_ahead_;
  }

  /// Replaces products by probabilities (times the factor of dropout) and by gradients of the products of query and
  /// key. Keys that all lanes see need no mask.
  void differentiate(BackwardPanel<T> const& queries, PanelKeys<A> const& seen, BlockRows const& rows) {
    RowTerms<A> const terms{queries.lse, queries.remainder, queries.delta, units_.weight_scale,
                            static_cast<A>(call_.step.softmax_scale())};
    RowRange plain{rows.end, rows.end};
    if (units_.finished && !blocks_.kept && visibility_ == Visibility::all) {
      RowRange const keys = seen.all_in({rows.key(rows.begin), rows.key(rows.end)});
      if (!keys.empty()) plain = {keys.begin - rows.block_begin, keys.end - rows.block_begin};
    }
    differentiate_masked(queries.panel, seen, {rows.block_begin, rows.first, rows.begin, plain.begin}, terms);
    Index const begin = rows.row(plain.begin) * B::panel;
    detail::differentiate(blocks_.scores + begin, dweights_ + begin, plain.size(), terms);
    differentiate_masked(queries.panel, seen, {rows.block_begin, rows.first, plain.end, rows.end}, terms);
  }

  void differentiate_masked(QueryPanel<A> const& panel, PanelKeys<A> const& seen, BlockRows const& rows,
                            RowTerms<A> const& terms) {
    if (rows.begin >= rows.end) return;
    Index const begin = rows.row(rows.begin) * B::panel, count = rows.end - rows.begin;
    V largest[B::panel_vectors];
    for (V& vector : largest) vector = V::zero();
    finish_logits(call_.step, panel, seen, visibility_, rows, blocks_, units_, largest);
    if (blocks_.kept) find_kept(call_.step, panel, rows, *blocks_.kept);
    DropoutFactors<A> const dropout{blocks_.kept, rows.begin, static_cast<A>(call_.step.rules.dropout.keep_scale())};
    A* const slope = blocks_.slope ? blocks_.slope + begin : nullptr;
    auto const& dbias = call_.gradients.dbias;
    if (!dbias.data()) {
      detail::differentiate_masked<A>(blocks_.scores + begin, dweights_ + begin, slope, dropout, count, terms);
      return;
    }
    // The gradient of the bias is that of the logit, before slope and scale.
    RowTerms<A> of_logits = terms;
    of_logits.gradient_scale = A(1);
    detail::differentiate_masked<A>(blocks_.scores + begin, dweights_ + begin, nullptr, dropout, count, of_logits);
    BiasRows<A>(dbias, panel)
        .add_gradient(dweights_ + begin, call_.step.key_positions, {rows.key(rows.begin), rows.key(rows.end)});
    scale_gradients(dweights_ + begin, slope, count * B::panel, terms.gradient_scale);
  }

  /// dv += P^T dout, dk += dS^T q, dq += dS k.
  void multiply(BackwardPanel<T>& queries, KeyBlock<T>& keys, BlockRows const& rows, Index row_count,
                PrefetchQueue& ahead) {
    constexpr Index lanes_depth = BackwardPanel<T>::depth, keys_depth = KeyBlock<T>::depth, joined = Operand<E>::depth;
    E *weight_lanes = weight_lanes_, *gradient_lanes = gradient_lanes_, *gradient_rows = gradient_rows_;
    if constexpr (is_joined<E>) {
      join_lanes_of_panel(blocks_.scores, row_count, weight_lanes);
      join_lanes_of_panel(dweights_, row_count, gradient_lanes);
      join_rows_of_panel(dweights_, row_count, gradient_rows);
    } else {
      weight_lanes = blocks_.scores;
      gradient_lanes = gradient_rows = dweights_;
    }
    add_product_of_rows<E>(weight_lanes, {queries.dout_rows, lanes_depth}, {keys.dv, KeyBlock<T>::rows, rows.first},
                           row_count, extents_.value.padded());
    add_product_of_rows<E>(gradient_lanes, {queries.query_rows, lanes_depth}, {keys.dk, KeyBlock<T>::rows, rows.first},
                           row_count, extents_.head.padded());
    Index const first = rows.begin / joined / G::depth * G::depth;
    Index const depth = G::depth_padded(annulus::detail::ceil_divide(rows.end, joined) - first);
    add_product_of_columns<E>(keys.key_columns + first * G::rows, keys_depth * G::rows,
                              gradient_rows + (first - rows.first / joined) * B::panel, depth, queries.dq,
                              extents_.head.grouped(), ahead);
  }

  static void add_row(A* strips, Index capacity, Index i, T const* row, Index stride, Index dim, A factor) {
    for_each_strip<A>(B::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      constexpr Index width = Width * B::lanes;
      for (Index d = begin; d < std::min(begin + width, dim); ++d)
        strips[begin * capacity + i * width + d - begin] += factor * static_cast<A>(row[d * stride]);
    });
  }

  /// Adds the share of a query whose q or dout row holds NaN or infinity to the keys that it sees alone.
  void add_nonfinite_query(BackwardPanel<T> const& queries, KeyBlock<T>& keys, BlockRows const& rows,
                           Index lane) const {
    auto const add = [&](T const* row, Index stride, Index dim, A const* factors, A* gradients) {
      if (all_finite(row, stride, dim)) return;
      for (Index j = rows.begin; j < rows.end; ++j)
        if (A const factor = factors[rows.row(j) * B::panel + lane]; factor != A(0))
          add_row(gradients, KeyBlock<T>::rows, j, row, stride, dim, factor);
    };
    add(queries.dout_row[lane], queries.dout_stride, extents_.value.size, blocks_.scores, keys.dv);
    add(queries.query_row[lane], queries.query_stride, extents_.head.size, dweights_, keys.dk);
  }

  GradientCall<T> const& call_;
  StepExtents<E> const& extents_;
  VisibilityCache<T> const& visibility_cache_;
  LogitUnits<A> const units_;
  UnitBlocks<A> blocks_;
  Visibility visibility_ = Visibility::all;  ///< of the panel and block at work
  PrefetchQueue bias_ahead_;
  A* dweights_;
  /// For pairs and quads only: weights and gradients joined along the lanes, and gradients joined along the rows.
  E *weight_lanes_ = nullptr, *gradient_lanes_ = nullptr, *gradient_rows_ = nullptr;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
