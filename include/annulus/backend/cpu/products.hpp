#pragma once
// The matrix products of attention on packed blocks. Each keeps a rectangle of sums in registers and reads one vector
// row and a few repeated elements per step.

#include <algorithm>
#include <type_traits>

#include "annulus/backend/cpu/blocking.hpp"
#include "annulus/backend/cpu/simd/operand.hpp"
#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

namespace detail {

/// Rows x Width vectors of sums.
template <class A, int Rows, int Width>
struct Sums {
  Vector<A> of[Rows][Width];

  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) of[r][v] = Vector<A>::zero();
  }
  [[gnu::always_inline]] void load(A const* from, Index stride) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) of[r][v] = Vector<A>::load(from + r * stride + v * Vector<A>::lanes);
  }
  [[gnu::always_inline]] void add(A const* from, Index stride) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) of[r][v] = of[r][v] + Vector<A>::load(from + r * stride + v * Vector<A>::lanes);
  }
  [[gnu::always_inline]] void store(A* to, Index stride) const {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) of[r][v].store(to + r * stride + v * Vector<A>::lanes);
  }
  /// += sum over k < depth of a[r * row_stride + k * depth_stride] * b[k * b_stride + column].
  template <class E>
  [[gnu::always_inline]] void add_product(E const* a, Index row_stride, Index depth_stride, E const* b, Index b_stride,
                                          Index depth) {
    using O = Operand<E>;
    for (Index k = 0; k < depth; ++k) {
      typename O::Row row[Width];
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) row[v] = O::load(b + v * Vector<A>::lanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        auto const element = O::repeat(a[r * row_stride]);
#pragma GCC unroll 4
        for (int v = 0; v < Width; ++v) of[r][v] = O::multiply_add(element, row[v], of[r][v]);
      }
      a += depth_stride;
      b += b_stride;
    }
  }
};

}  // namespace detail

/// result[row][lane] = sum over k < depth of rows[row][k] * panel[k][lane]. `rows`: micro_rows at a time,
/// [depth][micro_rows] each. With Maximum, maximum[v] rises to the largest result of each lane.
template <bool Maximum, class E, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void multiply_rows(E const* rows, Index row_count, E const* panel, Index depth, A* result,
                                     Vector<A>* maximum) {
  using B = Blocking<A>;
  Vector<A> largest[B::panel_vectors];
  if constexpr (Maximum)
    for (int v = 0; v < B::panel_vectors; ++v) largest[v] = maximum[v];
  for (Index row = 0; row < row_count; row += B::micro_rows) {
    detail::Sums<A, B::micro_rows, B::panel_vectors> sums;
    A* const place = result + row * B::panel;
    // Long sums are made of shorter ones: the rounding error of a sum grows with its length.
    Index const part = depth > 2 * B::sum_length ? Index{B::sum_length} : depth;
    Index k = 0;
    do {
      sums.clear();
      sums.add_product(rows + row * depth + k * B::micro_rows, 1, B::micro_rows, panel + k * B::panel, B::panel,
                       std::min(part, depth - k));
      if (k > 0) sums.add(place, B::panel);
      sums.store(place, B::panel);
      k += part;
    } while (k < depth);
    if constexpr (Maximum) {
#pragma GCC unroll 16
      for (int r = 0; r < B::micro_rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < B::panel_vectors; ++v) largest[v] = larger(sums.of[r][v], largest[v]);
    }
  }
  if constexpr (Maximum)
    for (int v = 0; v < B::panel_vectors; ++v) maximum[v] = largest[v];
}

/// result[d][lane] += sum over k < depth of columns[k][d] * panel[k][lane], for d < dim, a multiple of micro_rows.
/// `columns`: micro_rows of d at a time, [depth][micro_rows] each, `group_stride` apart.
template <class E, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void add_product_of_columns(E const* columns, Index group_stride, E const* panel, Index depth,
                                              A* result, Index dim) {
  using B = Blocking<A>;
  for (Index d = 0; d < dim; d += B::micro_rows) {
    detail::Sums<A, B::micro_rows, B::panel_vectors> sums;
    sums.clear();
    sums.add_product(columns + d / B::micro_rows * group_stride, 1, B::micro_rows, panel, B::panel, depth);
    sums.add(result + d * B::panel, B::panel);
    sums.store(result + d * B::panel, B::panel);
  }
}

/// How a matrix of rows is stored: cut into strips of one to three vectors of columns, each strip dense, so that a
/// product runs through memory in order. Strip [d, d + width) of a matrix with `rows` rows begins at rows * d.
/// Rows from `first` on of such a matrix.
template <class E>
struct StripRows {
  E* data;
  Index capacity;  ///< rows of the matrix
  Index first = 0;

  /// Strip of `width` columns from column d on.
  E* strip(Index d, Index width) const { return data + d * capacity + first * width; }
};

/// Calls function(d, integral_constant<width in vectors>) for each strip of `dim` columns, a multiple of the lanes.
template <class A, class Function>
void for_each_strip(Index dim, Function&& function) {
  constexpr Index lanes = Vector<A>::lanes;
  for (Index d = 0; d < dim;) {
    Index const vectors = (dim - d) / lanes;
    // One vector alone would leave most of the multipliers idle: four are taken as two and two.
    if (vectors >= 3 && vectors != 4) {
      function(d, std::integral_constant<int, 3>());
      d += 3 * lanes;
    } else if (vectors >= 2) {
      function(d, std::integral_constant<int, 2>());
      d += 2 * lanes;
    } else {
      function(d, std::integral_constant<int, 1>());
      d += lanes;
    }
  }
}

namespace detail {

template <int Width, class E, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void add_product_to_strip(E const* a, E const* b, A* result, Index row_count) {
  using B = Blocking<A>;
  constexpr Index stride = Width * B::lanes, depth = B::panel / Operand<E>::depth;
  for (Index row = 0; row < row_count; row += B::micro_rows) {
    Sums<A, B::micro_rows, Width> sums;
    sums.clear();
    sums.add_product(a + row * depth, depth, 1, b, stride, depth);
    sums.add(result + row * stride, stride);
    sums.store(result + row * stride, stride);
  }
}

}  // namespace detail

/// result[row][d] += sum over lanes k of a panel of a[row][k] * b[k][d]. row_count is a multiple of micro_rows, dim of the
/// lanes of a vector.
template <class E, class A = typename Operand<E>::Sum>
void add_product_of_rows(E const* a, StripRows<E const> b, StripRows<A> result, Index row_count, Index dim) {
  for_each_strip<A>(dim, [&]<int Width>(Index d, std::integral_constant<int, Width>) {
    constexpr Index width = Width * Blocking<A>::lanes;
    detail::add_product_to_strip<Width>(a, b.strip(d, width), result.strip(d, width), row_count);
  });
}

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
