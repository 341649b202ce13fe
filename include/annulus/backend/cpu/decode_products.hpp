#pragma once
// Products of a few query rows with keys and values that are read where they are, row by row, as the hardware
// prefetches them. Lanes are dimensions.

#include <algorithm>
#include <type_traits>

#include "annulus/backend/cpu/packing.hpp"

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

/// Requests `dim` contiguous elements in the order of memory, before products wait for some of them: the hardware then
/// reads ahead at the full rate.
template <class T>
[[gnu::always_inline]] inline void request_row(T const* row, Index dim) {
  auto const* const bytes = reinterpret_cast<char const*>(row);
  for (Index b = 0; b < dim * static_cast<Index>(sizeof(T)); b += 64) __builtin_prefetch(bytes + b);
}

/// Where a query row is among `rows` rows of `depth` elements that a product reads in order: [tile of
/// rows][k / lanes][row][k % lanes].
template <class A>
struct QueryPlace {
  Index first, rows_of_tile;

  static QueryPlace of(Index row, Index depth, Index rows) {
    QueryPlace place{};
    for_each_row_tile<Blocking<A>::micro_rows>(rows, [&]<int Rows>(Index tile, std::integral_constant<int, Rows>) {
      if (tile <= row && row < tile + Rows) place = {tile * depth + (row - tile) * Vector<A>::lanes, Rows};
    });
    return place;
  }
  Index operator()(Index k) const {
    constexpr Index lanes = Vector<A>::lanes;
    return first + k / lanes * rows_of_tile * lanes + k % lanes;
  }
};

/// Loads a vector of packed elements E from a row of operands of whole vectors, or from packed elements.
template <class E, class R>
[[gnu::always_inline]] inline typename Operand<E>::Row load_row(R const* row, Index k) {
  if constexpr (std::is_same_v<R, E>)
    return Operand<E>::load(row + k);
  else if constexpr (is_pair<E>)
    return Operand<E>::load(reinterpret_cast<E const*>(row) + k);
  else
    return load_packed<E>(row + k);
}

/// Rows of keys: those of several heads, for each key.
template <class R>
struct KeyRows {
  R const* first;
  Index key_stride, head_stride;
  Index count, heads;
};

/// sums[(head * rows + r) * lanes + key] = product of a key and query row r, summed over Width vectors from k on
/// only, for Rows rows; added to the former sum unless k is 0. queries: see QueryPlace, `rows` rows for each head.
template <int Rows, int Width, class E, class R, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void multiply_keys(KeyRows<R> const& keys, Index k, E const* queries, Index depth, Index rows,
                                     Vector<A>* sums) {
  using V = Vector<A>;
  using O = Operand<E>;
  constexpr Index lanes = V::lanes;
  constexpr int parts = std::min(Width, Rows >= 8   ? 1
                                        : Rows >= 4 ? 2
                                                    : 4);  // several sums hide the latency of additions
  for (Index j = 0; j < keys.count; ++j)
    for (Index h = 0; h < keys.heads; ++h) {
      R const* const key = keys.first + j * keys.key_stride + h * keys.head_stride;
      E const* const query = queries + h * rows * depth + k * Rows;
      V of[Rows][parts];
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < parts; ++p) of[r][p] = V::zero();
#pragma GCC unroll 8
      for (int v = 0; v < Width; ++v) {
        auto const element = load_row<E>(key, k + v * lanes);
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
          of[r][v % parts] = O::multiply_add(element, O::load(query + (v * Rows + r) * lanes), of[r][v % parts]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
        for (int p = 1; p < parts; ++p) of[r][0] = of[r][0] + of[r][p];
        V& sum = sums[(h * rows + r) * lanes + j];
        sum = k == 0 ? of[r][0] : sum + of[r][0];
      }
    }
}

/// The same for whole rows of `depth` packed elements and all query rows.
template <class E, class R, class A = typename Operand<E>::Sum>
void multiply_all_keys(KeyRows<R> const& keys, E const* queries, Index depth, Index rows, Vector<A>* sums) {
  constexpr Index lanes = Vector<A>::lanes;
  for_each_row_tile<Blocking<A>::micro_rows>(rows, [&]<int Rows>(Index row, std::integral_constant<int, Rows>) {
    Index k = 0;
    auto const strips = [&]<int Width>(std::integral_constant<int, Width>) {
      for (; k + Width * lanes <= depth; k += Width * lanes)
        multiply_keys<Rows, Width, E, R>(keys, k, queries + row * depth, depth, rows, sums + row * lanes);
    };
    strips(std::integral_constant<int, 8>());
    strips(std::integral_constant<int, 4>());
    strips(std::integral_constant<int, 2>());
    strips(std::integral_constant<int, 1>());
  });
}

/// Joins two vectors: element I of the result is element Source::of(I) of a, or of b beyond the lanes.
template <class Source, class A>
[[gnu::always_inline]] inline Vector<A> shuffled(Vector<A> a, Vector<A> b) {
  return [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    return Vector<A>{__builtin_shufflevector(a.native, b.native, Source::of(I)...)};
  }
  (std::make_integer_sequence<int, Vector<A>::lanes>());
}

/// Adds the lanes of as many vectors as lanes: lane i of the result is the sum over rows[i]. Within 16 bytes first,
/// where shuffles are fastest, then across.
template <class A>
[[gnu::always_inline]] inline Vector<A> sums_of_lanes(Vector<A> const* rows) {
  using V = Vector<A>;
  constexpr int lanes = V::lanes, part = 16 / static_cast<int>(sizeof(A)), parts = lanes / part;
  // Elements of a and b alternate; those of the low or high half of each part.
  struct Low {
    static constexpr int of(int i) { return i / part * part + i % part / 2 + i % 2 * lanes; }
  };
  struct High {
    static constexpr int of(int i) { return Low::of(i) + part / 2; }
  };
  // Pairs of elements alternate.
  struct LowPairs {
    static constexpr int of(int i) { return i / part * part + i % 2 + i % part / 2 * lanes; }
  };
  struct HighPairs {
    static constexpr int of(int i) { return LowPairs::of(i) + 2; }
  };
  V of_parts[parts];
#pragma GCC unroll 4
  for (int p = 0; p < parts; ++p) {
    V const* const four = rows + p * part;
    V const first = shuffled<Low>(four[0], four[1]) + shuffled<High>(four[0], four[1]);
    if constexpr (part == 4) {
      V const second = shuffled<Low>(four[2], four[3]) + shuffled<High>(four[2], four[3]);
      of_parts[p] = shuffled<LowPairs>(first, second) + shuffled<HighPairs>(first, second);
    } else {
      of_parts[p] = first;
    }
  }
  // Each part now has a share of the sums of its rows in each 16 bytes.
  if constexpr (parts == 4) {
    struct LowHalf {
      static constexpr int of(int i) { return i % (lanes / 2) + i / (lanes / 2) * lanes; }
    };
    struct HighHalf {
      static constexpr int of(int i) { return LowHalf::of(i) + lanes / 2; }
    };
    struct Even {
      static constexpr int of(int i) { return i / part % 2 * 2 * part + i % part + i / (2 * part) * lanes; }
    };
    struct Odd {
      static constexpr int of(int i) { return Even::of(i) + part; }
    };
    V const first = shuffled<LowHalf>(of_parts[0], of_parts[1]) + shuffled<HighHalf>(of_parts[0], of_parts[1]);
    V const second = shuffled<LowHalf>(of_parts[2], of_parts[3]) + shuffled<HighHalf>(of_parts[2], of_parts[3]);
    return shuffled<Even>(first, second) + shuffled<Odd>(first, second);
  } else if constexpr (parts == 2) {
    struct LowHalf {
      static constexpr int of(int i) { return i % part + i / part * lanes; }
    };
    struct HighHalf {
      static constexpr int of(int i) { return LowHalf::of(i) + part; }
    };
    return shuffled<LowHalf>(of_parts[0], of_parts[1]) + shuffled<HighHalf>(of_parts[0], of_parts[1]);
  } else {
    return of_parts[0];
  }
}

/// Rows of values, `step` pointers apart.
template <class T>
struct ValueRows {
  T const* const* rows;
  Index count, step;
};

/// output[row][d] = sum over value rows j of weights[row * Stride + j] * values[j][d], plus output[row][d] unless
/// `first`, for Rows rows and Width vectors of d. Requests `request` elements of each value row first.
template <int Rows, int Width, Index Stride, class A, class T>
[[gnu::noinline]] void add_values(A const* weights, ValueRows<T> const& values, Index d, A* output, Index output_stride,
                                  Index request, bool first) {
  using V = Vector<A>;
  Sums<A, Rows, Width> sums;
  sums.clear();
  if (!first) sums.add(output, output_stride);
  T const* const* row = values.rows;
  for (Index j = 0; j < values.count; ++j, row += values.step) {
    if constexpr (Rows == 1)
      request_row(*row + d, Width * V::lanes);
    else
      request_row(*row, request);
    V value[Width];
#pragma GCC unroll 8
    for (int v = 0; v < Width; ++v) value[v] = load_widened<A>(*row + d + v * V::lanes);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      V const weight = V::of(weights[r * Stride + j]);
#pragma GCC unroll 8
      for (int v = 0; v < Width; ++v) sums.of[r][v] = multiply_add(weight, value[v], sums.of[r][v]);
    }
  }
  sums.store(output, output_stride);
}

/// The same for all rows and `dim` columns, a multiple of the lanes.
template <Index Stride, class A, class T>
void add_all_values(A const* weights, Index rows, ValueRows<T> const& values, Index dim, A* output, bool first) {
  constexpr Index lanes = Vector<A>::lanes;
  for_each_row_tile<4>(rows, [&]<int Rows>(Index row, std::integral_constant<int, Rows>) {
    constexpr int widest = std::min(8, Blocking<A>::micro_rows * 2 / Rows);
    Index d = 0;
    auto const strips = [&]<int Width>(std::integral_constant<int, Width>) {
      for (; d + Width * lanes <= dim; d += Width * lanes)
        add_values<Rows, Width, Stride>(weights + row * Stride, values, d, output + row * dim + d, dim,
                                        row + d == 0 ? dim : 0, first);
    };
    if constexpr (widest >= 8) strips(std::integral_constant<int, 8>());
    if constexpr (widest >= 4) strips(std::integral_constant<int, 4>());
    strips(std::integral_constant<int, 2>());
    strips(std::integral_constant<int, 1>());
  });
}

/// The same for one row of each of `heads` heads, whose value rows are [key][head] and are read in that order.
template <Index Stride, class A, class T>
[[gnu::noinline]] void add_values_of_heads(A const* weights, Index heads, T const* const* values, Index count,
                                           Index dim, A* output) {
  using V = Vector<A>;
  constexpr Index width = 8, lanes = V::lanes;
  std::fill_n(output, heads * dim, A(0));
  for (Index j = 0; j < count; ++j)
    for (Index h = 0; h < heads; ++h) {
      T const* const row = values[j * heads + h];
      A* const sums = output + h * dim;
      V const weight = V::of(weights[h * Stride + j]);
      Index d = 0;
      for (; d + width * lanes <= dim; d += width * lanes) {
        request_row(row + d, width * lanes);
#pragma GCC unroll 8
        for (Index e = d; e < d + width * lanes; e += lanes)
          multiply_add(weight, load_widened<A>(row + e), V::load(sums + e)).store(sums + e);
      }
      for (; d < dim; d += lanes) multiply_add(weight, load_widened<A>(row + d), V::load(sums + d)).store(sums + d);
    }
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
