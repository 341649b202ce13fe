#pragma once
// What the backward pass holds of a panel of queries and of a block of keys while they meet.

#include <algorithm>
#include <cmath>
#include <limits>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/packing_pairs.hpp"
#include "annulus/backend/cpu/workspace.hpp"
#include "annulus/numerics/merge.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Extents of head_dim and value_dim: as given, in elements E, and filled up to whole vectors.
template <class E>
struct GradientExtents {
  using B = Blocking<typename Operand<E>::Sum>;
  Index head_dim, value_dim;

  Index head_depth() const { return ceil_divide(head_dim, Operand<E>::depth); }
  Index value_depth() const { return ceil_divide(value_dim, Operand<E>::depth); }
  Index head_dim_padded() const { return B::dim_padded(head_dim); }
  Index value_dim_padded() const { return B::dim_padded(value_dim); }
};

/// A block of keys: what the products read, and the gradients that grow while panel after panel passes.
template <class T>
struct KeyBlock {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;
  /// Rows of a block, and rows of elements.
  static constexpr Index rows = B::key_block, depth = rows / Operand<E>::depth;

  KeyBlock() = default;
  KeyBlock(Dealer& dealer, GradientExtents<E> const& extents)
      : key_groups(dealer.take<E>(B::key_block * extents.head_depth())),
        value_groups(dealer.take<E>(B::key_block * extents.value_depth())),
        key_rows(dealer.take<E>(depth * extents.head_dim_padded())),
        dk(dealer.take<A>(B::key_block * extents.head_dim_padded())),
        dv(dealer.take<A>(B::key_block * extents.value_dim_padded())) {}

  /// Keys [begin, begin + count) of the step.
  void load(HeadRows<T const> const& k, HeadRows<T const> const& v, Index begin, Index count, GradientExtents<E> const& extents) {
    pack_row_groups(k, begin, count, extents.head_dim, key_groups);
    pack_row_groups(v, begin, count, extents.value_dim, value_groups);
    T const* from[B::key_block];
    for (Index j = 0; j < count; ++j) from[j] = k.row(begin + j);
    pack_strips(from, k.dim_stride, count, extents.head_dim, key_rows, rows, &not_finite);
    std::fill_n(dk, B::key_block * extents.head_dim_padded(), A(0));
    std::fill_n(dv, B::key_block * extents.value_dim_padded(), A(0));
  }

  E* key_groups = nullptr;
  E* value_groups = nullptr;
  E* key_rows = nullptr;  ///< in strips, as dk and dv
  A* dk = nullptr;
  A* dv = nullptr;
  RowSet not_finite;  ///< rows of keys that key_rows holds as zeros
};

/// A panel of queries with their dout and dq.
template <class T>
class BackwardPanel {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;

 public:
  /// Rows of a panel, and rows of elements.
  static constexpr Index rows = B::panel, depth = rows / Operand<E>::depth;

  BackwardPanel() = default;
  BackwardPanel(Dealer& dealer, GradientExtents<E> const& extents)
      : queries(dealer.take<E>(rows * extents.head_depth())),
        douts(dealer.take<E>(rows * extents.value_depth())),
        query_rows(dealer.take<E>(depth * extents.head_dim_padded())),
        dout_rows(dealer.take<E>(depth * extents.value_dim_padded())),
        dq(dealer.take<A>(B::panel * extents.head_dim_padded())) {}

  void load(QueryPanel<A> const& loaded, GradientExtents<E> const& extents, HostStep<T> const& step, TensorView<T const, 4> const& q,
            BackwardOperands<T, A, A, HostMemory> const& backward, TensorView<A, 4> const& query_gradient) {
    panel = loaded;
    auto const units = LogitUnits<A>::of(step);
    A ones[B::panel], scales[B::panel];
    for (int lane = 0; lane < B::panel; ++lane) {
      ones[lane] = A(1);
      scales[lane] = units.query_scale;
      query_row[lane] = dout_row[lane] = nullptr;
      dq_row[lane] = nullptr;
      // A row that saw nothing, and a lane without a row, has weight 2^-inf = 0 everywhere.
      lse_high[lane] = std::numeric_limits<A>::infinity();
      lse_low[lane] = delta[lane] = A(0);
      if (lane >= panel.count) continue;
      Index const b = panel.rows->batch, i = panel.query(lane), h = panel.head(lane);
      if (backward.lse(b, h, i) == empty_row<A>) continue;
      in_powers_of_two(backward.lse(b, h, i), lse_high[lane], lse_low[lane]);
      delta[lane] = backward.delta(b, h, i);
      query_row[lane] = q.data() + q.offset(b, i, h, 0);
      dout_row[lane] = backward.dout.data() + backward.dout.offset(b, i, h, 0);
      dq_row[lane] = query_gradient.data() + query_gradient.offset(b, i, h, 0);
    }
    query_stride = q.stride(axis::dim);
    dout_stride = backward.dout.stride(axis::dim);
    RowSet not_finite_douts;
    if constexpr (is_pair<E>) {
      pack_panel(query_row, query_stride, extents.head_dim, queries);
      pack_panel(dout_row, dout_stride, extents.value_dim, douts);
    } else {
      pack_panel(query_row, query_stride, extents.head_dim, scales, queries);
      pack_panel(dout_row, dout_stride, extents.value_dim, ones, douts);
    }
    pack_strips(query_row, query_stride, rows, extents.head_dim, query_rows, rows, &not_finite);
    pack_strips(dout_row, dout_stride, rows, extents.value_dim, dout_rows, rows, &not_finite_douts);
    not_finite.insert(not_finite_douts);
    pack_strips(dq_row, 1, rows, extents.head_dim, dq, rows);
  }

  void store_gradient(GradientExtents<E> const& extents) const {
    unpack_strips(dq, rows, rows, extents.head_dim, [&](Index lane) { return dq_row[lane]; },
                  [](A& element, A value) { element = value; });
  }

  /// natural * log2(e) = high + low.
  static void in_powers_of_two(A natural, A& high, A& low) {
    if constexpr (sizeof(A) == 8) {
      high = natural * log2_e;
      low = std::fma(natural, log2_e, -high);
    } else {
      double const exact = static_cast<double>(natural) * log2_e;
      high = static_cast<A>(exact);
      low = static_cast<A>(exact - static_cast<double>(high));
    }
  }

  QueryPanel<A> panel;
  /// In powers of 2, as a sum that is more exact than its first term.
  alignas(64) A lse_high[B::panel], lse_low[B::panel], delta[B::panel];
  E* queries = nullptr;     ///< times LogitUnits::query_scale, lanes side by side
  E* douts = nullptr;       ///< lanes side by side
  E* query_rows = nullptr;  ///< in strips, as dout_rows and dq
  E* dout_rows = nullptr;
  A* dq = nullptr;
  RowSet not_finite;  ///< rows of which query_rows or dout_rows holds zeros instead
  T const* query_row[B::panel];
  T const* dout_row[B::panel];
  A* dq_row[B::panel];
  Index query_stride = 1, dout_stride = 1;
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
