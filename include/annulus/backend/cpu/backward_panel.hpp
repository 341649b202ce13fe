#pragma once
// Packed operands and gradients of a query panel and of a key block in the backward pass.

#include <algorithm>
#include <limits>

#include "annulus/backend/cpu/logits.hpp"
#include "annulus/backend/cpu/packing.hpp"
#include "annulus/backend/cpu/packing_pairs.hpp"
#include "annulus/backend/cpu/workspace.hpp"
#include "annulus/numerics/merge.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Extents of head_dim and value_dim: as given, in packed elements E, and padded to whole vectors or groups.
template <class E>
struct GradientExtents {
  using B = Blocking<typename Operand<E>::Sum>;
  using G = PackedGroup<E>;
  Index head_dim, value_dim;

  Index head_depth() const { return G::elements(head_dim); }
  Index value_depth() const { return G::elements(value_dim); }
  Index head_dim_padded() const { return B::dim_padded(head_dim); }
  Index value_dim_padded() const { return B::dim_padded(value_dim); }
  /// head_dim padded to whole groups of columns.
  Index head_dim_grouped() const { return G::rows_padded(head_dim); }
};

/// A block of keys: its packed operands, and its gradients, which accumulate over panels.
template <class T>
struct KeyBlock {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using B = Blocking<A>;
  /// Rows of a block, and the same in packed elements.
  static constexpr Index rows = B::key_block, depth = rows / Operand<E>::depth;

  KeyBlock() = default;
  KeyBlock(Arena& arena, GradientExtents<E> const& extents)
      : key_groups(arena.take<E>(B::key_block * extents.head_depth())),
        value_groups(arena.take<E>(B::key_block * extents.value_depth())),
        key_columns(arena.take<E>(depth * extents.head_dim_grouped())),
        dk(arena.take<A>(B::key_block * extents.head_dim_padded())),
        dv(arena.take<A>(B::key_block * extents.value_dim_padded())) {}

  /// Packs keys [begin, begin + count) of the step and clears the gradients.
  void load(HeadRows<T const> const& k, HeadRows<T const> const& v, Index begin, Index count,
            GradientExtents<E> const& extents) {
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

  BackwardPanel() = default;
  BackwardPanel(Arena& arena, GradientExtents<E> const& extents)
      : queries(arena.take<E>(rows * extents.head_depth())),
        douts(arena.take<E>(rows * extents.value_depth())),
        query_rows(arena.take<E>(depth * extents.head_dim_padded())),
        dout_rows(arena.take<E>(depth * extents.value_dim_padded())),
        dq(arena.take<A>(B::panel * extents.head_dim_grouped())) {}

  /// Packs the rows of `loaded` and reads their dq, which store_gradient() writes back.
  void load(QueryPanel<A> const& loaded, GradientExtents<E> const& extents, HostStep<T> const& step,
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
    pack_panel<A, A>(dq_row, 1, extents.head_dim, ones, dq);
    std::fill_n(dq + extents.head_dim * B::panel, (extents.head_dim_grouped() - extents.head_dim) * B::panel, A(0));
  }

  void store_gradient(GradientExtents<E> const& extents) const {
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

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
