#pragma once
// Products of a few query rows with keys that are read where they are and transposed in registers. Lanes are keys.

#include <algorithm>
#include <type_traits>

#include "annulus/backend/cpu/decode/lines_ahead.hpp"
#include "annulus/backend/cpu/decode/summation.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Calls function(first, integral_constant<count>) for parts of `rows` rows: powers of two, at most Most, the largest
/// ones first.
template <int Most, class Function>
[[gnu::always_inline]] inline void for_each_row_tile(Index rows, Function&& function) {
  Index row = 0;
  for (; row + Most <= rows; row += Most) function(row, std::integral_constant<int, Most>());
  auto const rest = [&]<int Rows>(std::integral_constant<int, Rows> tile) __attribute__((always_inline)) {
    if (row + Rows > rows) return;
    function(row, tile);
    row += Rows;
  };
  if constexpr (Most > 4) rest(std::integral_constant<int, 4>());
  rest(std::integral_constant<int, 2>());
  rest(std::integral_constant<int, 1>());
}

/// Keys that are multiplied together.
inline constexpr Index keys_at_once = 16;

/// Rows of `keys_at_once` keys, whole vectors of packed elements.
template <class T>
struct KeyRows {
  T const* first;
  Index stride;
};

/// products[r * stride + key] = product of a key and query row r, in the order of Order, for Rows rows. queries:
/// [depth][Rows]. depth: whole vectors; absent elements are 0.
template <int Rows, class Order, class T, class A>
[[gnu::noinline]] void multiply_keys(KeyRows<T> const keys, typename Order::Query const* const queries,
                                     Index const depth, A* const products, Index const stride, LinesAhead<T>& lines) {
  using V = Vector<A>;
  using E = typename Order::Packed;
  constexpr int lanes = V::lanes;
  // Several vectors of keys hide the latency of additions.
  constexpr int vectors = static_cast<int>(std::clamp<Index>(4 / Rows, 1, keys_at_once / lanes));
  constexpr Index elements = lanes * Operand<E>::depth;  // of a key in a vector
  constexpr Index read = vectors * lanes * elements * static_cast<Index>(sizeof(T));
  LinesAhead<T> ahead = lines;
  Index const part = annulus::detail::ceil_divide(Order::part(depth), Index{lanes}) * lanes;
  for (Index first = 0; first < keys_at_once; first += vectors * lanes) {
    V totals[Rows][vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) totals[r][v] = V::zero();
    T const* key = keys.first + first * keys.stride;
    auto const* query = queries;
    for (Index begin = 0; begin < depth; begin += part) {
      typename Order::Sum sums[Rows][vectors] = {};
      Index const end = std::min(begin + part, depth);
#pragma GCC unroll 1
      for (Index k = begin; k < end; k += lanes, key += elements, query += lanes * Rows) {
        T const* row = key;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) {
          V block[lanes];
#pragma GCC unroll 16
          for (int i = 0; i < lanes; ++i, row += keys.stride) block[i] = load_packed<E>(row);
          interleave(block);
#pragma GCC unroll 16
          for (int i = 0; i < lanes; ++i) {
            auto const factor = Order::of_bits(block[i]);
#pragma GCC unroll 8
            for (int r = 0; r < Rows; ++r)
              sums[r][v] = Order::multiply_add(factor, Order::repeat(query[i * Rows + r]), sums[r][v]);
          }
        }
        ahead.template prefetch<read>();
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) totals[r][v] = Order::total(sums[r][v]) + totals[r][v];
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) totals[r][v].store(products + r * stride + first + v * lanes);
  }
  lines = ahead;
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
