#pragma once
// Products of the weights of a few query rows with values that are read where they are, in the order of memory, and
// prefetched. Lanes are dimensions.

#include <algorithm>
#include <type_traits>

#include "annulus/backend/cpu/decode/key_products.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Rows of values, those of several heads for each key. While a row is multiplied, the row of `ahead` for the same key
/// and head is prefetched.
template <class T>
struct ValueRows {
  T const* const* rows;  ///< [key][head]
  Index count, heads;
  T const* ahead;  ///< [key][head][dim], keys `stride` elements apart; 0 for rows that are in a cache
  Index stride;
  Index pages_ahead;  ///< elements from `ahead` to the rows whose pages are prefetched; 0: none
  Cache cache;        ///< where it is prefetched to

  /// Those of `keys`, from a head on.
  ValueRows of(RowRange keys, Index head = 0, Index dim = 0) const {
    return {rows + keys.begin * heads + head,
            keys.size(),
            heads,
            ahead + keys.begin * stride + head * dim,
            stride,
            pages_ahead,
            cache};
  }
  void prefetch_pages() const {
    if (pages_ahead > 0)
      for (Index j = 0; j < count; ++j) prefetch_page(ahead + j * stride + pages_ahead, stride);
  }
};

/// Loads Width vectors of a value row, or of two as pairs of rows. `step`: pointers from one row to the next.
template <int Width, class E, class R>
[[gnu::always_inline]] inline void load_joined(R const* const* rows, Index step, Index d,
                                               typename Operand<E>::Row (&values)[Width]) {
  using A = typename Operand<E>::Sum;
  constexpr Index lanes = Vector<A>::lanes;
  if constexpr (!is_pair<E>) {
#pragma GCC unroll 8
    for (int v = 0; v < Width; ++v) values[v] = load_widened<A>(rows[0] + d + v * lanes);
  } else if constexpr (Width == 1) {
    using Row = typename Operand<E>::Row;
    auto const widened = [&](R const* row) __attribute__((always_inline)) { return load_widened<A>(row + d).native; };
    values[0] = reinterpret_cast<Row>(widened(rows[0])) >> 16 | reinterpret_cast<Row>(widened(rows[step]));
  } else {
#pragma GCC unroll 4
    for (int v = 0; v < Width; v += 2) {
      Index const begin = d + v * lanes;
      Operand<E>::interleave(rows[0] + begin, rows[step] + begin, values + v);
    }
  }
}

/// Calls function(row, d, height, integral_constant<Width>) for column d and those at multiples of Width vectors after it,
/// as long as that many columns are left of `dim`; advances d.
template <int Width, class A, class Height, class Function>
[[gnu::always_inline]] inline void for_each_tile_of_width(Index row, Index& d, Index dim, Height height,
                                                          Function& function) {
  constexpr Index columns = Width * Vector<A>::lanes;
  for (; d + columns <= dim; d += columns) function(row, d, height, std::integral_constant<int, Width>());
}

/// Calls function(row, d, integral_constant<Rows>, integral_constant<Width>) for the tiles, Rows rows and Width
/// vectors, of the sums for `rows` rows and `dim` columns, a multiple of the lanes. The sums of a tile are stored as
/// [Rows][Width] vectors, `row` * dim + d * Rows elements behind those of the first tile.
template <class A, class Function>
[[gnu::always_inline]] inline void for_each_tile_of_sums(Index rows, Index dim, Function&& function) {
  for_each_row_tile<Blocking<A>::micro_rows>(rows, [&]<int Rows>(Index row, std::integral_constant<int, Rows> height) {
    constexpr int widest = std::min(8, Blocking<A>::micro_rows * 2 / Rows);
    Index d = 0;
    if constexpr (widest >= 8) for_each_tile_of_width<8, A>(row, d, dim, height, function);
    if constexpr (widest >= 4) for_each_tile_of_width<4, A>(row, d, dim, height, function);
    for_each_tile_of_width<2, A>(row, d, dim, height, function);
    for_each_tile_of_width<1, A>(row, d, dim, height, function);
  });
}

/// Adds a tile of sums to output[row][dim].
template <class A>
void add_tiles(A const* sums, Index rows, Index dim, A* output) {
  using V = Vector<A>;
  for_each_tile_of_sums<A>(rows, dim,
                           [&]<int Rows, int Width>(Index row, Index d, std::integral_constant<int, Rows>,
                                                    std::integral_constant<int, Width>) {
                             A const* from = sums + row * dim + d * Rows;
                             for (int r = 0; r < Rows; ++r)
                               for (int v = 0; v < Width; ++v, from += V::lanes) {
                                 A* const to = output + (row + r) * dim + d + v * V::lanes;
                                 (V::load(to) + V::load(from)).store(to);
                               }
                           });
}

/// The tile of sums[row][d] = sum over value rows j of weights[row][j] * values[j][d], plus the former sums unless
/// `first`, for Rows rows, `Stride` weights apart, and Width vectors of d. With pairs there are weights and values for
/// an even number of rows. Prefetches the same columns of the rows ahead if `prefetches`.
template <int Rows, int Width, Index Stride, class E, class R, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void add_values(E const* weights, ValueRows<R> const values, Index dim, Index d, A* tile,
                                  bool prefetches, bool first) {
  using O = Operand<E>;
  constexpr Index lanes = Vector<A>::lanes, line = 64 / static_cast<Index>(sizeof(R));
  Sums<A, Rows, Width> sums;
  sums.clear();
  if (!first) sums.add(tile, Width * lanes);
  R const* const* row = values.rows;
  bool const contiguous = values.stride == dim;
  R const* ahead = values.ahead + (contiguous ? values.count * d : d);
  Index const step = contiguous ? Width * lanes : values.stride;
#pragma GCC unroll 1
  for (Index j = 0; j * O::depth < values.count; ++j, row += O::depth * values.heads) {
    if (prefetches)
      for (int i = 0; i < O::depth; ++i, ahead += step)
        for (Index e = 0; e < Width * lanes; e += line) prefetch_line(ahead + e, values.cache);
    typename O::Row value[Width];
    load_joined<Width, E>(row, values.heads, d, value);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      auto const weight = O::repeat(weights[r * Stride + j]);
#pragma GCC unroll 8
      for (int v = 0; v < Width; ++v) sums.of[r][v] = O::multiply_add(weight, value[v], sums.of[r][v]);
    }
  }
  sums.store(tile, Width * lanes);
}

/// The same for all rows and columns: sums are tiles, see for_each_tile_of_sums().
template <Index Stride, class E, class R, class A = typename Operand<E>::Sum>
void add_all_values(E const* weights, Index rows, ValueRows<R> const& values, Index dim, A* sums, bool first) {
  for_each_tile_of_sums<A>(rows, dim,
                           [&]<int Rows, int Width>(Index row, Index d, std::integral_constant<int, Rows>,
                                                    std::integral_constant<int, Width>) {
                             add_values<Rows, Width, Stride>(weights + row * Stride, values, dim, d,
                                                             sums + row * dim + d * Rows, row == 0, first);
                           });
}

/// Adds the products for one row of each head to output[head][dim]. Value rows are read in the order of `values`.
template <class A, class T>
[[gnu::noinline]] void add_values_of_heads(A const* weights, Index stride, ValueRows<T> const& values, Index dim,
                                           A* output) {
  using V = Vector<A>;
  constexpr Index width = 8, lanes = V::lanes;
  for (Index j = 0; j < values.count; ++j)
    for (Index h = 0; h < values.heads; ++h) {
      T const* const row = values.rows[j * values.heads + h];
      T const* const ahead = values.ahead + j * values.stride + h * dim;
      A* const sums = output + h * dim;
      V const weight = V::of(weights[h * stride + j]);
      prefetch_row(ahead, 1, dim, values.cache);
      Index d = 0;
      for (; d + width * lanes <= dim; d += width * lanes)
#pragma GCC unroll 8
        for (Index e = d; e < d + width * lanes; e += lanes)
          multiply_add(weight, load_widened<A>(row + e), V::load(sums + e)).store(sums + e);
      for (; d < dim; d += lanes) multiply_add(weight, load_widened<A>(row + d), V::load(sums + d)).store(sums + d);
    }
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
