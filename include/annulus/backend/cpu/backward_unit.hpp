#pragma once
// Gradients of one query panel and one key block: probabilities are recomputed from the log-sum-exp, and five products
// and one exponential give the shares of dq, dk and dv.

#include <algorithm>
#include <limits>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/weigh.hpp"
#include "annulus/backend/cpu/workspace.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// A block of keys: its packed operands, and its gradients, which accumulate over panels.
template <class T>
struct KeyBlock {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;
  /// Rows of a block, and the same in packed elements.
  static constexpr Index rows = B::key_block, depth = rows / Operand<E>::depth;

  KeyBlock(Arena& arena, PackedExtents<E> const& extents)
      : key_groups(arena.take<E>(B::key_block * extents.head_depth())),
        value_groups(arena.take<E>(B::key_block * extents.value_depth())),
        key_columns(arena.take<E>(depth * extents.head_dim_grouped())),
        dk(arena.take<A>(B::key_block * extents.head_dim_padded())),
        dv(arena.take<A>(B::key_block * extents.value_dim_padded())) {}

  /// Packs keys [begin, begin + count) of the step and clears the gradients.
  void load(HeadRows<T const> const& k, HeadRows<T const> const& v, Index begin, Index count,
            PackedExtents<E> const& extents) {
    pack_row_groups(k, begin, count, extents.head_dim, key_groups);
    pack_row_groups(v, begin, count, extents.value_dim, value_groups);
    pack_column_groups(k, begin, count, extents.head_dim, key_columns, not_finite);
    not_finite_operands = not_finite;
    for (Index j = 0; j < count; ++j)
      if (!all_finite<A>(v.row(begin + j), v.dim_stride, extents.value_dim)) not_finite_operands.insert(j);
    std::fill_n(dk, B::key_block * extents.head_dim_padded(), A(0));
    std::fill_n(dv, B::key_block * extents.value_dim_padded(), A(0));
  }

  E* key_groups = nullptr;
  E* value_groups = nullptr;
  E* key_columns = nullptr;
  A* dk = nullptr;  ///< in strips (StripRows)
  A* dv = nullptr;  ///< in strips
  RowSet not_finite;           ///< rows of keys that key_columns holds as zeros
  RowSet not_finite_operands;  ///< rows whose key or value is not finite: the product with a row of zeros is NaN
};

/// A panel of queries: packed queries and douts, statistics of the rows, and dq.
template <class T>
class BackwardPanel {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;

 public:
  /// Rows of a panel, and the same in packed elements.
  static constexpr Index rows = B::panel, depth = rows / Operand<E>::depth;

  BackwardPanel(Arena& arena, PackedExtents<E> const& extents)
      : queries(arena.take<E>(rows * extents.head_depth())),
        douts(arena.take<E>(rows * extents.value_depth())),
        query_rows(arena.take<E>(depth * extents.head_dim_padded())),
        dout_rows(arena.take<E>(depth * extents.value_dim_padded())),
        dq(arena.take<A>(B::panel * extents.head_dim_grouped())) {}

  /// Packs the rows of `loaded` and reads their dq, which store_gradient() writes back.
  void load(QueryPanel<A> const& loaded, PackedExtents<E> const& extents, HostStep<T> const& step,
            TensorView<T const, 4> const& q, BackwardOperands<T, A, A, HostMemory> const& backward,
            TensorView<A, 4> const& query_gradient) {
    panel = loaded;
    auto const units = LogitUnits<A>::of(step);
    A ones[B::panel], scales[B::panel];
    std::fill_n(ones, B::panel, A(1));
    std::fill_n(scales, B::panel, units.query_scale);
    // Not in the loop below: GCC 12 at -O3 splits that loop by assignment and would write the null pointers last.
    std::fill_n(query_row, B::panel, nullptr);
    std::fill_n(dout_row, B::panel, nullptr);
    std::fill_n(dq_row, B::panel, nullptr);
    // A masked row, and a lane without a row, is a row of zeros with weight e^-inf = 0 for every key.
    std::fill_n(lse, B::panel, std::numeric_limits<A>::infinity());
    std::fill_n(remainder, B::panel, A(0));
    std::fill_n(delta, B::panel, A(0));
    for (int lane = 0; lane < panel.count; ++lane) {
      Index const b = panel.rows->batch, i = panel.query(lane), h = panel.head(lane);
      if (backward.lse(b, h, i) == empty_row<A>) continue;
      lse[lane] = backward.lse(b, h, i);
      remainder[lane] = backward.remainder(b, h, i);
      delta[lane] = backward.delta(b, h, i);
      query_row[lane] = q.data() + q.offset(b, i, h, 0);
      dout_row[lane] = backward.dout.data() + backward.dout.offset(b, i, h, 0);
      dq_row[lane] = query_gradient.data() + query_gradient.offset(b, i, h, 0);
    }
    query_stride = q.stride(axis::dim);
    dout_stride = backward.dout.stride(axis::dim);
    RowSet not_finite_douts;
    pack_panel(query_row, query_stride, extents.head_dim, scales, queries);
    pack_panel(dout_row, dout_stride, extents.value_dim, ones, douts);
    pack_strips(query_row, query_stride, rows, extents.head_dim, query_rows, not_finite);
    pack_strips(dout_row, dout_stride, rows, extents.value_dim, dout_rows, not_finite_douts);
    not_finite.insert(not_finite_douts);
    pack_panel<A, A>(dq_row, 1, extents.head_dim, ones, dq);
    std::fill_n(dq + extents.head_dim * B::panel, (extents.head_dim_grouped() - extents.head_dim) * B::panel, A(0));
  }

  void store_gradient(PackedExtents<E> const& extents) const {
    A const nothing[B::panel] = {};
    unpack_panel(dq, extents.head_dim, nothing, dq_row);
  }

  QueryPanel<A> panel;
  alignas(64) A lse[B::panel], remainder[B::panel], delta[B::panel];
  E* queries = nullptr;     ///< [head_dim][panel], times LogitUnits::query_scale
  E* douts = nullptr;       ///< [value_dim][panel]
  E* query_rows = nullptr;  ///< in strips
  E* dout_rows = nullptr;   ///< in strips
  A* dq = nullptr;          ///< [head_dim][panel]
  RowSet not_finite;        ///< rows that query_rows or dout_rows holds as zeros
  T const* query_row[B::panel];
  T const* dout_row[B::panel];
  A* dq_row[B::panel];
  Index query_stride = 1, dout_stride = 1;
};

namespace detail {

/// Statistics of the rows of a panel, one value per lane, and scales of the step.
template <class A>
struct RowTerms {
  A const *lse, *remainder, *delta;
  A weight_scale;    ///< multiplies products to give logits
  A gradient_scale;  ///< multiplies gradients of logits to give those of products of query and key
};

/// Replaces products of query and key by probabilities, and products of dout and value by gradients of the products of
/// query and key; [rows][panel] each. All pairs must be visible.
template <class A>
[[gnu::noinline]] void differentiate(A* products, A* dweights, Index rows, RowTerms<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V negative_lse[vectors], remainder[vectors], delta[vectors];
  for (int v = 0; v < vectors; ++v) {
    negative_lse[v] = V::zero() - V::load(terms.lse + v * lanes);
    remainder[v] = V::load(terms.remainder + v * lanes);
    delta[v] = V::load(terms.delta + v * lanes);
  }
  V const weight_scale = V::of(terms.weight_scale), gradient_scale = V::of(terms.gradient_scale);
  auto const differentiate_all = [&](auto exponent) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        Index const place = j * panel + v * lanes;
        V const weight = probability(exponent(V::load(products + place), negative_lse[v]), remainder[v]);
        weight.store(products + place);
        (weight * gradient_scale * (V::load(dweights + place) - delta[v])).store(dweights + place);
      }
  };
  if (terms.weight_scale == A(1) || !any_large(terms.lse))
    differentiate_all([&](V product, V negative) { return multiply_add(product, weight_scale, negative); });
  else
    differentiate_all([&](V product, V negative) { return large_exponent(product, weight_scale, negative); });
}

/// The same for pairs of which some may be masked (a logit of -inf), or with dropout: `kept` is null or [rows][panel],
/// and probabilities are multiplied by it. The gradients are those of logits.
template <class A>
[[gnu::noinline]] void differentiate_masked(A* logits, A* dweights, A const* kept, Index rows,
                                            RowTerms<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V const nothing = V::of(empty_row<A>), scale = V::of(terms.weight_scale);
  bool const large = terms.weight_scale != A(1) && any_large(terms.lse);
  for (Index j = 0; j < rows; ++j)
    for (int v = 0; v < vectors; ++v) {
      Index const place = j * panel + v * lanes;
      V const logit = V::load(logits + place), dweight = V::load(dweights + place);
      auto const masked = less_or_equal(logit, nothing);
      V const factor = kept ? select(masked, V::zero(), V::load(kept + place)) : V::of(A(1));
      V const lse = V::load(terms.lse + v * lanes), remainder = V::load(terms.remainder + v * lanes);
      V const exponent = large ? large_exponent(logit, scale, V::zero() - lse)
                               : multiply_add(logit, scale, V::zero() - lse);
      V const weight = select(masked, V::zero(), probability(exponent, remainder));
      (weight * factor).store(logits + place);
      // Values of a masked pair may be NaN and are not used.
      V const gradient = weight * (factor * dweight - V::load(terms.delta + v * lanes));
      select(masked, V::zero(), gradient).store(dweights + place);
    }
}

}  // namespace detail

/// Adds the share of a query panel and a key block to dq, dk, dv and dbias.
template <class T>
class BackwardUnit {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;
  using V = Vector<A>;
  using G = PackedGroup<E>;

 public:
  BackwardUnit(Arena& arena, HostStep<T> const& step) {
    constexpr Index block = Index{B::key_block} * B::panel;
    dweights_ = arena.take<A>(block);
    blocks_.scores = arena.take<A>(block);
    if constexpr (is_pair<E>) {
      weight_lanes_ = arena.take<E>(block / Operand<E>::depth);
      gradient_lanes_ = arena.take<E>(block / Operand<E>::depth);
      gradient_rows_ = arena.take<E>(block / Operand<E>::depth);
    }
    if (step.bias.data()) blocks_.bias = arena.take<A>(block);
    if (step.rules.logit_softcap > 0) blocks_.slope = arena.take<A>(block);
    if (step.rules.dropout.active()) blocks_.kept = arena.take<A>(block);
  }

  /// Adds the gradients of the keys of `rows`, which any lane of the panel sees, counted from the first of the block.
  void meet(HostStep<T> const& step, PackedExtents<E> const& extents, BackwardPanel<T>& queries,
            PanelKeys<A> const& seen, KeyBlock<T>& keys, BlockRows rows, HeadRows<T const> const& key_operand,
            TensorView<A, 4> const& dbias, PrefetchQueue& ahead) {
    rows.first = rows.begin / G::rows * G::rows;
    Index const row_count = G::rows_padded(rows.end) - rows.first;
    V* const no_maximum = nullptr;
    multiply_rows<false>(keys.key_groups + rows.first * extents.head_depth(), row_count, queries.queries,
                         extents.head_depth(), blocks_.scores, no_maximum, ahead);
    multiply_rows<false>(keys.value_groups + rows.first * extents.value_depth(), row_count, queries.douts,
                         extents.value_depth(), dweights_, no_maximum, ahead);
    // The products of lanes without a query may be NaN there; their weight is 0.
    keys.not_finite_operands.for_each_in(rows.begin, rows.end, [&](Index j) {
      for (Index lane = 0, place = rows.row(j) * B::panel; lane < B::panel; ++lane, ++place)
        if (!queries.query_row[lane]) blocks_.scores[place] = dweights_[place] = A(0);
    });
    differentiate(step, queries, seen, rows, dbias);
    // The packed groups at both ends may hold keys that no lane sees.
    Index const begin = rows.row(rows.begin) * B::panel, end = rows.row(rows.end) * B::panel;
    for (A* block : {blocks_.scores, dweights_}) {
      std::fill(block, block + begin, A(0));
      std::fill(block + end, block + row_count * B::panel, A(0));
    }
    multiply(extents, queries, keys, rows, row_count, ahead);

    queries.not_finite.for_each_in(0, B::panel,
                                   [&](Index lane) { add_nonfinite_query(extents, queries, keys, rows, lane); });
    keys.not_finite.for_each_in(rows.begin, rows.end, [&](Index j) {
      for (Index lane = 0; lane < B::panel; ++lane)
        if (A const gradient = dweights_[rows.row(j) * B::panel + lane]; gradient != A(0))
          for (Index d = 0; d < extents.head_dim; ++d)
            queries.dq[d * B::panel + lane] +=
                gradient * static_cast<A>(key_operand.row(rows.key(j))[d * key_operand.dim_stride]);
    });
  }

 private:
  /// Replaces products by probabilities (times the factor of dropout) and by gradients of the products of query and
  /// key. Keys that all lanes see need no mask.
  void differentiate(HostStep<T> const& step, BackwardPanel<T> const& queries, PanelKeys<A> const& seen,
                     BlockRows const& rows, TensorView<A, 4> const& dbias) {
    auto const units = LogitUnits<A>::of(step);
    A const scale = static_cast<A>(step.rules.softmax_scale.value());
    detail::RowTerms<A> const terms{queries.lse, queries.remainder, queries.delta, units.weight_scale, scale};
    RowRange plain{rows.end, rows.end};
    if (units.finished && !step.rules.dropout.active() && !seen.each) {
      RowRange const keys = seen.all_in({rows.key(rows.begin), rows.key(rows.end)});
      if (!keys.empty()) plain = {keys.begin - rows.block_begin, keys.end - rows.block_begin};
    }
    differentiate_masked(step, queries, seen, {rows.block_begin, rows.first, rows.begin, plain.begin}, terms, dbias);
    Index const begin = rows.row(plain.begin) * B::panel;
    detail::differentiate(blocks_.scores + begin, dweights_ + begin, plain.size(), terms);
    differentiate_masked(step, queries, seen, {rows.block_begin, rows.first, plain.end, rows.end}, terms, dbias);
  }

  void differentiate_masked(HostStep<T> const& step, BackwardPanel<T> const& queries, PanelKeys<A> const& seen,
                            BlockRows const& rows, detail::RowTerms<A> const& terms, TensorView<A, 4> const& dbias) {
    if (rows.begin >= rows.end) return;
    Index const begin = rows.row(rows.begin) * B::panel, count = rows.end - rows.begin;
    V largest[B::panel_vectors];
    for (V& vector : largest) vector = V::zero();
    finish_logits(step, queries.panel, seen, rows, blocks_, LogitUnits<A>::of(step), largest);
    if (step.rules.dropout.active()) gather_kept(step, queries.panel, seen, rows, blocks_.kept);
    detail::differentiate_masked(blocks_.scores + begin, dweights_ + begin,
                                 blocks_.kept ? blocks_.kept + begin : nullptr, count, terms);
    if (dbias.data()) add_bias_gradient(step, queries.panel, seen, rows, dbias);
    A const scale = terms.gradient_scale;
    for (Index e = begin; e < begin + count * B::panel; ++e)
      // The slope of an invisible pair is not set; its gradient is 0.
      dweights_[e] = dweights_[e] == A(0) ? A(0) : dweights_[e] * (blocks_.slope ? scale * blocks_.slope[e] : scale);
  }

  /// dv += P^T dout, dk += dS^T q, dq += dS k.
  void multiply(PackedExtents<E> const& extents, BackwardPanel<T>& queries, KeyBlock<T>& keys, BlockRows const& rows,
                Index row_count, PrefetchQueue& ahead) {
    constexpr Index lanes_depth = BackwardPanel<T>::depth, keys_depth = KeyBlock<T>::depth, pair = Operand<E>::depth;
    E *weight_lanes = weight_lanes_, *gradient_lanes = gradient_lanes_, *gradient_rows = gradient_rows_;
    if constexpr (is_pair<E>) {
      pair_lanes_of_panel(blocks_.scores, row_count, weight_lanes);
      pair_lanes_of_panel(dweights_, row_count, gradient_lanes);
      pair_rows_of_panel(dweights_, 0, row_count, gradient_rows);
    } else {
      weight_lanes = blocks_.scores;
      gradient_lanes = gradient_rows = dweights_;
    }
    add_product_of_rows<E>(weight_lanes, {queries.dout_rows, lanes_depth}, {keys.dv, KeyBlock<T>::rows, rows.first},
                           row_count, extents.value_dim_padded());
    add_product_of_rows<E>(gradient_lanes, {queries.query_rows, lanes_depth}, {keys.dk, KeyBlock<T>::rows, rows.first},
                           row_count, extents.head_dim_padded());
    Index const first = rows.begin / pair / G::depth * G::depth;
    Index const depth = G::depth_padded(ceil_divide(rows.end, pair) - first);
    add_product_of_columns<E>(keys.key_columns + first * G::rows, keys_depth * G::rows,
                              gradient_rows + (first - rows.first / pair) * B::panel, depth, queries.dq,
                              extents.head_dim_grouped(), ahead);
  }

  void add_bias_gradient(HostStep<T> const& step, QueryPanel<A> const& panel, PanelKeys<A> const& seen,
                         BlockRows const& rows, TensorView<A, 4> const& dbias) const {
    detail::for_each_pair(panel, seen, rows, [&](int lane, Index begin, Index end) {
      for (Index j = begin; j < end; ++j)
        dbias(panel.rows->batch, panel.head(lane), panel.query(lane),
              step.key_positions[static_cast<std::size_t>(rows.key(j))]) += dweights_[rows.row(j) * B::panel + lane];
    });
  }

  static void add_row(A* strips, Index capacity, Index i, T const* row, Index stride, Index dim, A factor) {
    for_each_strip<A>(B::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      constexpr Index width = Width * B::lanes;
      for (Index d = begin; d < std::min(begin + width, dim); ++d)
        strips[begin * capacity + i * width + d - begin] += factor * static_cast<A>(row[d * stride]);
    });
  }

  /// Adds the share of a query whose q or dout row holds NaN or infinity to the keys that it sees alone.
  void add_nonfinite_query(PackedExtents<E> const& extents, BackwardPanel<T> const& queries, KeyBlock<T>& keys,
                         BlockRows const& rows, Index lane) const {
    bool const q_is_zeroed = !all_finite<A>(queries.query_row[lane], queries.query_stride, extents.head_dim);
    bool const dout_is_zeroed = !all_finite<A>(queries.dout_row[lane], queries.dout_stride, extents.value_dim);
    for (Index j = rows.begin; j < rows.end; ++j) {
      A const weight = blocks_.scores[rows.row(j) * B::panel + lane],
              gradient = dweights_[rows.row(j) * B::panel + lane];
      if (dout_is_zeroed && weight != A(0))
        add_row(keys.dv, KeyBlock<T>::rows, j, queries.dout_row[lane], queries.dout_stride, extents.value_dim, weight);
      if (q_is_zeroed && gradient != A(0))
        add_row(keys.dk, KeyBlock<T>::rows, j, queries.query_row[lane], queries.query_stride, extents.head_dim,
                gradient);
    }
  }

  A* dweights_ = nullptr;
  /// For pairs only: weights and gradients as pairs of lanes, and gradients as pairs of rows.
  E *weight_lanes_ = nullptr, *gradient_lanes_ = nullptr, *gradient_rows_ = nullptr;
  UnitBlocks<A> blocks_{};
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
