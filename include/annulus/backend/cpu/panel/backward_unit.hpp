#pragma once
// Gradients of one query panel and one key block: probabilities are recomputed from the log-sum-exp, and five products
// and one exponential give the shares of dq, dk and dv.

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "annulus/backend/cpu/panel/dropout_bits.hpp"
#include "annulus/backend/cpu/panel/logits.hpp"
#include "annulus/backend/cpu/panel/packing.hpp"
#include "annulus/backend/cpu/panel/softmax_gradient.hpp"
#include "annulus/backend/cpu/threads/workspace.hpp"
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
  void load(HeadView<T const> const& k, HeadView<T const> const& v, Index begin, Index count,
            StepExtents<E> const& extents) {
    pack_row_groups(k, begin, count, extents.head.size, key_groups);
    pack_row_groups(v, begin, count, extents.value.size, value_groups);
    pack_column_groups(k, begin, count, extents.head.size, key_columns, not_finite);
    not_finite_operands = not_finite;
    T const *values[rows], *finite[rows];
    for (Index j = 0; j < count; ++j) values[j] = v.row(begin + j);
    find_finite_rows<T>(values, v.dim_stride, extents.value.size, 0, count, not_finite_operands, finite);
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

  /// Packs the rows of `loaded` and reads their dq, which store_gradient() writes back; `is_first`: it is 0 instead.
  void load(QueryPanel<A> const& loaded, GradientArguments<T> const& call, StepExtents<E> const& extents,
            bool is_first) {
    panel = loaded;
    bias = {call.step.bias, panel};
    dbias = {call.gradients.dbias, panel};
    written_dbias = {call.written.dbias, panel};
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
    pack_panel(query_row, query_stride, extents.head.size, LogitScales<A>::of(call.step).query_scale, queries);
    pack_panel(dout_row, dout_stride, extents.value.size, A(1), douts);
    pack_strips(query_row, query_stride, rows, extents.head.size, query_rows, not_finite);
    pack_strips(dout_row, dout_stride, rows, extents.value.size, dout_rows, not_finite_douts);
    not_finite |= not_finite_douts;
    Index const read = is_first ? 0 : extents.head.size;
    if (!is_first) pack_panel<A, A>(dq_row, 1, read, A(1), dq);
    std::fill_n(dq + read * rows, (extents.head.grouped() - read) * rows, A(0));
  }

  /// `is_last`: writes the result, also of masked rows.
  void store_gradient(GradientArguments<T> const& call, StepExtents<E> const& extents, bool is_last) const {
    A factors[rows] = {};
    if (!is_last) return unpack_panel<A>(dq, extents.head.size, nullptr, factors, dq_row);
    T* results[rows] = {};
    std::fill_n(factors, rows, A(1));
    for (int lane = 0; lane < panel.count; ++lane) {
      T* const row = panel.row(call.written.dq, lane);
      if (dq_row[lane])
        results[lane] = row;
      else
        std::fill_n(row, extents.head.size, T(0));
    }
    unpack_results<A>(dq, extents.head.size, nullptr, factors, results);
  }

  QueryPanel<A> panel;
  BiasRows<T const> bias;
  BiasRows<A> dbias;
  BiasRows<T> written_dbias;
  bool lacks_dbias = false;  ///< written_dbias is to be written for the key block at work
  alignas(64) A lse[rows], remainder[rows], delta[rows];
  E *queries, *douts;         ///< [dim][panel]; queries times LogitScales::query_scale
  E *query_rows, *dout_rows;  ///< in strips
  A* dq;                      ///< [head_dim][panel]
  RowSet not_finite;          ///< rows that query_rows or dout_rows holds as zeros
  T const *query_row[rows], *dout_row[rows];
  A* dq_row[rows];
  Index query_stride = 1, dout_stride = 1;
};

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
  BackwardUnit(Arena& arena, GradientArguments<T> const& call, StepExtents<E> const& extents,
               VisibilityCache<T> const& cache)
      : call_(call),
        extents_(extents),
        visibility_cache_(cache),
        scales_(LogitScales<A>::of(call.step)),
        blocks_(PanelScratch<A>::of(arena, call.step, Pass::backward)),
        dweights_(arena.take<A>(Index{B::key_block} * B::panel)) {
    constexpr Index size = Index{B::key_block} * B::panel / Operand<E>::depth;
    if constexpr (is_joined<E>) {
      gradient_rows_ = arena.take<E>(size);
      for (Index i = 0; i < panels_at_once; ++i) {
        weight_lanes_[i] = arena.take<E>(size);
        gradient_lanes_[i] = arena.take<E>(size);
      }
    }
  }

  /// Panels whose shares of dk and dv are added together.
  static constexpr Index panels_at_once = G::tiled ? most_row_factors : 1;

  /// Adds the gradients of the keys of `rows`, which any lane of the panel sees, counted from the first of the block.
  /// dk and dv may be added only by finish(); until then `queries` must not change.
  void meet(BackwardPanel<T>& queries, PanelKeys<A> const& seen, KeyBlock<T>& keys, BlockKeys rows,
            HeadView<T const> const& key_operand, PrefetchQueue& ahead) {
    visibility_ = visibility_cache_.find(call_.step, queries.panel, seen, rows, *blocks_.visible);
    if (visibility_ == Visibility::none) return;
    rows.first = rows.begin / G::rows * G::rows;
    Index const row_count = G::rows_padded(rows.end) - rows.first;
    Index const first_half_count = G::rows_padded(rows.first_half_end<E>(seen)) - rows.first;
    PrefetchQueue& during_products = call_.step.bias.data() ? expect_bias(queries, seen, rows) : ahead;
    E const* const key_groups = keys.key_groups + rows.first * extents_.head.packed();
    if (hides_products()) {
      Vector<A>* const no_maximum = nullptr;
      multiply_rows(key_groups, row_count, first_half_count, queries.queries, extents_.head.packed(), blocks_.scores,
                    during_products, no_maximum, SeenByBits<A>{blocks_.visible, rows.first});
    } else {
      multiply_rows(key_groups, row_count, first_half_count, queries.queries, extents_.head.packed(), blocks_.scores,
                    during_products);
    }
    multiply_rows(keys.value_groups + rows.first * extents_.value.packed(), row_count, first_half_count, queries.douts,
                  extents_.value.packed(), dweights_, during_products);
    // The products of lanes without a query may be NaN there; their weight is 0.
    for_each_row_in(keys.not_finite_operands, rows.begin, rows.end, [&](Index j) {
      for (Index lane = 0, place = rows.row(j) * B::panel; lane < B::panel; ++lane, ++place)
        if (!queries.query_row[lane]) blocks_.scores[place] = dweights_[place] = A(0);
    });
    bool const all_finite = queries.not_finite.none() && keys.not_finite.none();
    RowRange const joined = softmax_gradient(queries, seen, rows, all_finite);
    // The packed groups at both ends may hold keys that no lane sees.
    Index const begin = rows.row(rows.begin) * B::panel, end = rows.row(rows.end) * B::panel;
    for (A* block : {blocks_.scores, dweights_}) {
      std::fill(block, block + begin, A(0));
      std::fill(block + end, block + row_count * B::panel, A(0));
    }
    find_first_lanes(seen, rows, row_count);
    multiply(queries, keys, rows, row_count, first_half_count, joined, ahead);

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

  /// Adds what meet() has left to add to the gradients of the key block. Call it before meeting another block.
  void finish(KeyBlock<T>& keys) {
    std::size_t const count = std::exchange(shares_, 0);
    if (count == 0) return;
    add_products_of_rows<E>(std::span(of_values_).first(count), StripRows<A>{keys.dv, KeyBlock<T>::rows},
                            extents_.value.padded());
    add_products_of_rows<E>(std::span(of_keys_).first(count), StripRows<A>{keys.dk, KeyBlock<T>::rows},
                            extents_.head.padded());
  }

 private:
  /// True if the products of queries and keys are logits, which are masked as they are computed.
  bool hides_products() const { return !G::tiled && scales_.finished && visibility_ == Visibility::some; }

  /// Lists the rows of bias and dbias that the panel needs for the next key block.
  PrefetchQueue& expect_bias(BackwardPanel<T> const& queries, PanelKeys<A> const& seen, BlockKeys const& rows) {
    bias_ahead_.clear();
    RowRange const next{rows.key(B::key_block), std::min(rows.key(2 * B::key_block), seen.any.end)};
    queries.bias.expect(bias_ahead_, call_.step.key_positions, next);
    queries.dbias.expect(bias_ahead_, call_.step.key_positions, next);
    queries.written_dbias.expect(bias_ahead_, call_.step.key_positions, next);
    return bias_ahead_;
  }

  /// Replaces products by probabilities (times the factor of dropout) and by gradients of the products of query and
  /// key. Keys that all lanes see need no mask. Returns the rows of the blocks whose results are joined already, and
  /// not in the blocks, which `may_join` permits.
  RowRange softmax_gradient(BackwardPanel<T>& queries, PanelKeys<A> const& seen, BlockKeys const& rows, bool may_join) {
    SoftmaxStatistics<A> const terms{queries.lse, queries.remainder, queries.delta, scales_.weight_scale,
                                     static_cast<A>(call_.step.softmax_scale())};
    RowRange plain{rows.end, rows.end}, joined{rows.end, rows.end};
    if (scales_.finished && !blocks_.kept && visibility_ == Visibility::all) {
      RowRange const keys = seen.all_in({rows.key(rows.begin), rows.key(rows.end)});
      if (!keys.empty()) plain = {keys.begin - rows.block_begin, keys.end - rows.block_begin};
    }
    if constexpr (is_pair<E>)
      if (may_join) {
        plain = {(plain.begin + 1) / 2 * 2, plain.end / 2 * 2};
        if (plain.empty()) plain = {rows.end, rows.end};
        joined = {(rows.begin + 1) / 2 * 2, rows.end / 2 * 2};
        if (joined.empty()) joined = {rows.end, rows.end};
      }
    masked_softmax_gradient(queries, seen, {rows.block_begin, rows.first, rows.begin, plain.begin}, joined, terms);
    Index const begin = rows.row(plain.begin) * B::panel;
    if constexpr (is_pair<E>)
      if (!joined.empty())
        softmax_gradient_to_pairs(blocks_.scores + begin, dweights_ + begin, plain.size(), terms,
                                  this->joined_at(begin));
    if (joined.empty()) detail::softmax_gradient(blocks_.scores + begin, dweights_ + begin, plain.size(), terms);
    masked_softmax_gradient(queries, seen, {rows.block_begin, rows.first, plain.end, rows.end}, joined, terms);
    return {rows.row(joined.begin), rows.row(joined.end)};
  }

  /// The same for `rows`, which may be masked or have options. `joined`: keys whose results are joined.
  void masked_softmax_gradient(BackwardPanel<T>& queries, PanelKeys<A> const& seen, BlockKeys const& rows,
                               RowRange joined, SoftmaxStatistics<A> const& terms) {
    if (rows.begin >= rows.end) return;
    V largest[B::panel_vectors];
    for (V& vector : largest) vector = V::zero();
    if (!hides_products()) finish_logits(call_.step, queries.bias, seen, visibility_, rows, blocks_, scales_, largest);
    if (blocks_.kept) find_kept(call_.step, queries.panel, rows, *blocks_.kept);
    bool const for_bias = queries.dbias || queries.written_dbias;
    auto const masked_rows = [&](Index begin) {
      Index const place = rows.row(begin) * B::panel;
      return MaskedRows<A>{blocks_.scores + place,
                           dweights_ + place,
                           blocks_.slope ? blocks_.slope + place : nullptr,
                           {blocks_.kept, begin, static_cast<A>(call_.step.rules.dropout.keep_scale())}};
    };
    joined = {std::clamp(joined.begin, rows.begin, rows.end), std::clamp(joined.end, rows.begin, rows.end)};
    RowRange const parts[]{{rows.begin, joined.begin}, {joined.end, rows.end}};
    for (RowRange const& part : parts)
      if (!part.empty()) detail::masked_softmax_gradient(masked_rows(part.begin), for_bias, part.size(), terms);
    if constexpr (is_pair<E>)
      if (!joined.empty())
        masked_softmax_gradient_to_pairs(masked_rows(joined.begin), for_bias, joined.size(), terms,
                                         this->joined_at(rows.row(joined.begin) * B::panel));
    if (!for_bias) return;
    // The gradient of the bias is that of the logit, before slope and scale.
    add_bias_gradient(queries, rows, dweights_ + rows.row(rows.begin) * B::panel);
    for (RowRange const& part : parts) {
      if (part.empty()) continue;
      MaskedRows<A> const floats = masked_rows(part.begin);
      scale_gradients(floats.dweights, floats.slope, part.size() * B::panel, terms.gradient_scale);
    }
  }

#if defined(ANNULUS_CPU_HAS_PAIRS)
  /// Where the pairs of a row that begins at `place` of the blocks are stored.
  JoinedRows joined_at(Index place) const {
    return {weight_lanes_[shares_] + place / 2, gradient_lanes_[shares_] + place / 2, gradient_rows_ + place / 2};
  }
#endif

  /// Adds gradients of the logits of `rows` to the gradient of the bias, or writes that of the whole key block.
  void add_bias_gradient(BackwardPanel<T>& queries, BlockKeys const& rows, A const* gradients) const {
    std::span<Index const> const positions = call_.step.key_positions;
    RowRange const keys{rows.key(rows.begin), rows.key(rows.end)};
    if (queries.dbias) queries.dbias.add_gradient(gradients, positions, keys);
    if (!queries.written_dbias) return;
    bool const overwrites = std::exchange(queries.lacks_dbias, false);
    queries.written_dbias.add_gradient(gradients, positions, keys, overwrites);
    if (!overwrites) return;
    queries.written_dbias.clear(positions, {rows.block_begin, keys.begin});
    queries.written_dbias.clear(positions, {keys.end, std::min(rows.key(B::key_block), extents_.keys)});
  }

  /// Finds the lanes that see none of the first rows of the blocks, as those of later queries under a causal mask.
  void find_first_lanes(PanelKeys<A> const& seen, BlockKeys const& rows, Index row_count) {
    FirstLanes<A>& lanes = first_lanes_[shares_];
    lanes.fill(0);
    if (!G::halves || rows.key(rows.first + row_count) <= seen.all.end) return;
    Index lane = 0;
    for (Index row = 0; row < row_count; row += B::micro_rows) {
      while (lane < B::panel && seen.end[lane] <= rows.key(rows.first + row)) ++lane;
      lanes[static_cast<std::size_t>(row / B::micro_rows)] = static_cast<std::uint8_t>(lane / 2 * 2);
    }
  }

  /// dv += P^T dout, dk += dS^T q, dq += dS k. The first half of the panel sees the first `first_half_count` rows of
  /// the blocks alone. `joined`: rows of the blocks whose factors are joined already.
  void multiply(BackwardPanel<T>& queries, KeyBlock<T>& keys, BlockKeys const& rows, Index row_count,
                Index first_half_count, RowRange joined, PrefetchQueue& ahead) {
    constexpr Index lanes_depth = BackwardPanel<T>::depth, keys_depth = KeyBlock<T>::depth, depth = Operand<E>::depth;
    E *weight_lanes = weight_lanes_[shares_], *gradient_lanes = gradient_lanes_[shares_],
      *gradient_rows = gradient_rows_;
    if constexpr (is_joined<E>) {
      auto const join = [&](Index begin, Index end) {
        if (begin >= end) return;
        Index const place = begin * B::panel, element = place / depth;
        join_lanes_of_panel(blocks_.scores + place, end - begin, weight_lanes + element);
        join_lanes_of_panel(dweights_ + place, end - begin, gradient_lanes + element);
        join_rows_of_panel(dweights_ + place, end - begin, gradient_rows + element);
      };
      if (joined.empty()) joined = {row_count, row_count};
      join(0, joined.begin);
      join(joined.end, row_count);
    } else {
      weight_lanes = reinterpret_cast<E*>(blocks_.scores);
      gradient_lanes = gradient_rows = reinterpret_cast<E*>(dweights_);
    }
    FirstLanes<A> const* const first_lanes = &first_lanes_[shares_];
    of_values_[shares_] = {weight_lanes, {queries.dout_rows, lanes_depth}, rows.first, row_count, first_lanes};
    of_keys_[shares_] = {gradient_lanes, {queries.query_rows, lanes_depth}, rows.first, row_count, first_lanes};
    if (++shares_ == panels_at_once) finish(keys);
    Index const first = rows.begin / depth / G::depth * G::depth;
    Index const count = G::depth_padded(annulus::detail::ceil_divide(rows.end, depth) - first);
    Index const before = first - rows.first / depth;
    add_product_of_columns<E>(
        keys.key_columns + first * G::rows, keys_depth * G::rows, gradient_rows + before * B::panel, count,
        std::clamp<Index>(first_half_count / depth - before, 0, count), queries.dq, extents_.head.grouped(), ahead);
  }

  static void add_row(A* strips, Index capacity, Index i, T const* row, Index stride, Index dim, A factor) {
    for_each_strip<E>(B::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      constexpr Index width = Width * B::lanes;
      for (Index d = begin; d < std::min(begin + width, dim); ++d)
        strips[begin * capacity + i * width + d - begin] += factor * static_cast<A>(row[d * stride]);
    });
  }

  /// Adds the share of a query whose q or dout row holds NaN or infinity to the keys that it sees alone.
  void add_nonfinite_query(BackwardPanel<T> const& queries, KeyBlock<T>& keys, BlockKeys const& rows,
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

  GradientArguments<T> const& call_;
  StepExtents<E> const& extents_;
  VisibilityCache<T> const& visibility_cache_;
  LogitScales<A> const scales_;
  PanelScratch<A> blocks_;
  Visibility visibility_ = Visibility::all;  ///< of the panel and block at work
  PrefetchQueue bias_ahead_;
  A* dweights_;
  /// For pairs and quads only: weights and gradients joined along the lanes, and gradients joined along the rows.
  E *weight_lanes_[panels_at_once] = {}, *gradient_lanes_[panels_at_once] = {}, *gradient_rows_ = nullptr;
  /// Factors of the shares of dv and dk that finish() adds.
  std::array<RowFactors<E>, panels_at_once> of_values_{}, of_keys_{};
  std::array<FirstLanes<A>, panels_at_once> first_lanes_{};
  std::size_t shares_ = 0;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
