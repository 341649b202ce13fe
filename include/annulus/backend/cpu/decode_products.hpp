#pragma once
// Products of a few query rows with keys and values that are read where they are, in the order of memory, and
// prefetched. Lanes are dimensions.

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

/// Rows of keys: those of several heads, for each key. While a row is multiplied, the one that lies `ahead` elements
/// further is prefetched, and long before it the page of the one `pages_ahead` elements further; 0 for rows that are in
/// a cache, whose pages are not prefetched.
template <class R>
struct KeyRows {
  R const* first;
  Index key_stride, head_stride;
  Index count, heads;
  Index ahead, pages_ahead;
  Cache cache;  ///< where it is prefetched to
};

/// sums[(head * rows + r) * lanes + key] = product of a key and query row r, summed over the vectors of `depth` packed
/// elements only, for Rows rows. queries: see QueryPlace, `rows` rows for each head.
template <int Rows, class E, class R, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void multiply_keys(KeyRows<R> const keys, E const* queries, Index depth, Index rows,
                                     Vector<A>* sums) {
  using V = Vector<A>;
  using O = Operand<E>;
  constexpr Index joined = std::is_same_v<R, E> ? 1 : O::depth;  // elements of a key in a packed element
  constexpr Index lanes = V::lanes, line = 64 / static_cast<Index>(sizeof(R)), elements = lanes * joined;
  constexpr int at_once = 2;  // keys that share the loads of queries
  // Several sums hide the latency of additions; all of them take at most half of the registers.
  constexpr int chains = std::clamp(vector_registers / 2 / (at_once * Rows), 1, 4);
  constexpr int steps = std::max(chains, static_cast<int>(line / elements));  // vectors of a pass of the loop
  R const* first = keys.first;
  for (Index j = 0; j < keys.count; j += at_once, first += at_once * keys.key_stride) {
    bool const single = j + 1 == keys.count;
    if (keys.pages_ahead > 0)
      for (int i = 0; i < at_once; ++i) prefetch_page(first + i * keys.key_stride + keys.pages_ahead, keys.key_stride);
    R const* row = first;
    E const* query = queries;
    V* to = sums + j;
    for (Index h = 0; h < keys.heads; ++h, row += keys.head_stride, query += rows * depth, to += rows * lanes) {
      R const* key[at_once] = {row, single ? row : row + keys.key_stride};
      V of[at_once][Rows][chains];
#pragma GCC unroll 2
      for (int i = 0; i < at_once; ++i)
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
          for (int c = 0; c < chains; ++c) of[i][r][c] = V::zero();
      E const* factors = query;
      Index k = 0;
      auto const add_vectors = [&]<bool All>(std::bool_constant<All>) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int step = 0; step < steps; ++step) {
          if (!All && k + step * lanes >= depth) break;
          typename O::Row element[at_once];
#pragma GCC unroll 2
          for (int i = 0; i < at_once; ++i) {
            if (step * elements % line == 0) prefetch_line(key[i] + keys.ahead + step * elements, keys.cache);
            element[i] = load_row<E>(key[i], step * lanes);
          }
#pragma GCC unroll 8
          for (int r = 0; r < Rows; ++r) {
            auto const factor = O::load_once(factors + (step * Rows + r) * lanes);
#pragma GCC unroll 2
            for (int i = 0; i < at_once; ++i)
              of[i][r][step % chains] = O::multiply_add(element[i], factor, of[i][r][step % chains]);
          }
        }
      };
#pragma GCC unroll 1
      for (; k + steps * lanes <= depth; k += steps * lanes, factors += steps * Rows * lanes) {
        add_vectors(std::true_type());
#pragma GCC unroll 2
        for (int i = 0; i < at_once; ++i) key[i] += steps * elements;
      }
      add_vectors(std::false_type());
#pragma GCC unroll 2
      for (int i = 0; i < at_once; ++i) {
        if (i > 0 && single) break;
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
          for (int c = 1; c < chains; ++c) of[i][r][0] = of[i][r][0] + of[i][r][c];
          to[r * lanes + i] = of[i][r][0];
        }
      }
    }
  }
}

/// The same for all query rows.
template <class E, class R, class A = typename Operand<E>::Sum>
void multiply_all_keys(KeyRows<R> const& keys, E const* queries, Index depth, Index rows, Vector<A>* sums) {
  for_each_row_tile<Blocking<A>::micro_rows>(rows, [&]<int Rows>(Index row, std::integral_constant<int, Rows>) {
    multiply_keys<Rows, E, R>(keys, queries + row * depth, depth, rows, sums + row * Vector<A>::lanes);
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

/// Rows of values, those of several heads for each key. While a row is multiplied, the row of `ahead` for the same key and
/// head is prefetched.
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

/// Calls function(row, d, integral_constant<Rows>, integral_constant<Width>) for the tiles, Rows rows and Width vectors,
/// of the sums for `rows` rows and `dim` columns, a multiple of the lanes. The sums of a tile are stored as [Rows][Width]
/// vectors, `row` * dim + d * Rows elements behind those of the first tile.
template <class A, class Function>
[[gnu::always_inline]] inline void for_each_tile_of_sums(Index rows, Index dim, Function&& function) {
  constexpr Index lanes = Vector<A>::lanes;
  for_each_row_tile<Blocking<A>::micro_rows>(rows, [&]<int Rows>(Index row, std::integral_constant<int, Rows> height) {
    constexpr int widest = std::min(8, Blocking<A>::micro_rows * 2 / Rows);
    Index d = 0;
    auto const strips = [&]<int Width>(std::integral_constant<int, Width> width) {
      for (; d + Width * lanes <= dim; d += Width * lanes) function(row, d, height, width);
    };
    if constexpr (widest >= 8) strips(std::integral_constant<int, 8>());
    if constexpr (widest >= 4) strips(std::integral_constant<int, 4>());
    strips(std::integral_constant<int, 2>());
    strips(std::integral_constant<int, 1>());
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
/// `first`, for Rows rows, `Stride` weights apart, and Width vectors of d. With pairs there are weights and values for an
/// even number of rows. Prefetches the same columns of the rows ahead if `prefetches`.
template <int Rows, int Width, Index Stride, class E, class R, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void add_values(E const* weights, ValueRows<R> const values, Index d, A* tile, bool prefetches,
                                  bool first) {
  using O = Operand<E>;
  constexpr Index lanes = Vector<A>::lanes, line = 64 / static_cast<Index>(sizeof(R));
  Sums<A, Rows, Width> sums;
  sums.clear();
  if (!first) sums.add(tile, Width * lanes);
  R const* const* row = values.rows;
  R const* ahead = values.ahead + d;
#pragma GCC unroll 1
  for (Index j = 0; j * O::depth < values.count; ++j, row += O::depth * values.heads) {
    if (prefetches)
      for (int i = 0; i < O::depth; ++i, ahead += values.stride)
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
                             add_values<Rows, Width, Stride>(weights + row * Stride, values, d,
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
