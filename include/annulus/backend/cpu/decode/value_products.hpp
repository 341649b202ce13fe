#pragma once
// Products of the weights of a few query rows with values that are read where they are. Lanes are dimensions.

#include <cstddef>
#include <type_traits>

#include "annulus/backend/cpu/decode/key_products.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Rows of values, whole vectors, with pairs an even number of them.
template <class T>
struct ValueRows {
  T const* first;
  Index stride, count;
};

/// sums[row][d] += sum over value rows j of weights[j][row] * values[j][d], in the order of Order, for Rows rows, dim
/// elements apart, and Width vectors of d. weights: rows of a panel, or of pairs of keys.
template <int Rows, int Width, class Order, class T, class A>
[[gnu::noinline]] void add_values(typename Order::Packed const* weights, ValueRows<T> const values, A* const sums,
                                  Index const dim, LinesAhead<T>& lines) {
  using V = Vector<A>;
  constexpr Index lanes = V::lanes, depth = Operand<typename Order::Packed>::depth;
  constexpr Index read = Width * lanes * depth * static_cast<Index>(sizeof(T));
  typename Order::Sum of[Rows][Width] = {};
  auto const sum_at = [&](int r, int v) { return sums + r * dim + v * lanes; };
  if constexpr (!Order::in_chunks)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Width; ++v) of[r][v] = V::load(sum_at(r, v));
  LinesAhead<T> ahead = lines;
  T const* row = values.first;
#pragma GCC unroll 1
  for (Index j = 0; j < values.count; j += depth, row += depth * values.stride, weights += Blocking<A>::panel) {
    typename Order::Factor value[Width];
    Order::load(row, values.stride, value);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      auto const weight = Order::repeat(weights[r]);
#pragma GCC unroll 8
      for (int v = 0; v < Width; ++v) of[r][v] = Order::multiply_add(value[v], weight, of[r][v]);
    }
    ahead.template prefetch<read>();
  }
  lines = ahead;
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Width; ++v) {
      V total = Order::total(of[r][v]);
      if constexpr (Order::in_chunks) total = V::load(sum_at(r, v)) + total;
      total.store(sum_at(r, v));
    }
}

/// The same for columns [d, dim), as long as Width vectors of them are left; advances d. Sums take half of the registers.
template <int Rows, int Width, class Order, class T, class A>
void add_columns(typename Order::Packed const* weights, ValueRows<T> const& values, A* sums, Index& d, Index dim,
                 LinesAhead<T>& lines) {
  constexpr Index columns = Width * Vector<A>::lanes;
  constexpr std::size_t most = 2 * Blocking<A>::micro_rows * sizeof(Vector<A>);
  if constexpr (Rows * Width * sizeof(typename Order::Sum) <= most)
    for (; d + columns <= dim; d += columns)
      add_values<Rows, Width, Order>(weights, {values.first + d, values.stride, values.count}, sums + d, dim, lines);
}

/// The same for all of `rows` rows and `dim` columns, whole vectors.
template <class Order, class T, class A>
void add_all_values(typename Order::Packed const* weights, Index rows, ValueRows<T> const& values, A* sums, Index dim,
                    LinesAhead<T>& lines) {
  for_each_row_tile<Blocking<A>::micro_rows>(rows, [&]<int Rows>(Index row, std::integral_constant<int, Rows>) {
    LinesAhead<T> none, &ahead = row == 0 ? lines : none;
    Index d = 0;
    add_columns<Rows, 8, Order>(weights + row, values, sums + row * dim, d, dim, ahead);
    add_columns<Rows, 4, Order>(weights + row, values, sums + row * dim, d, dim, ahead);
    add_columns<Rows, 2, Order>(weights + row, values, sums + row * dim, d, dim, ahead);
    add_columns<Rows, 1, Order>(weights + row, values, sums + row * dim, d, dim, ahead);
  });
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
