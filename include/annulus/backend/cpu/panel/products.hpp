#pragma once
// Matrix products of attention on packed blocks. Each keeps a rectangle of sums in registers and reads one row of
// vectors and a few broadcast elements per step.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include "annulus/backend/cpu/panel/amx_products.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Rows x Width vectors of sums, held in registers.
template <class A, int Rows, int Width>
struct Sums {
  Vector<A> of[Rows][Width];

  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) of[r][v] = Vector<A>::zero();
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
  /// Replaces sums of lanes that do not see their row by -inf: seen(r, First + v) are the lanes that do.
  template <int First, class Seen>
  [[gnu::always_inline]] void hide(Seen const& seen) {
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) of[r][v] = select(seen(r, First + v), of[r][v], Vector<A>::of(empty_row<A>));
  }
  /// Adds the sum over k < depth of a[r * row_stride + k * depth_stride] * b[k * b_stride + column], to vectors from
  /// First on; of quads to all. The row stride of quads is 1.
  template <int First = 0, class E>
  [[gnu::always_inline]] void add_product(E const* a, Index row_stride, Index depth_stride, E const* b, Index b_stride,
                                          Index depth) {
    using O = Operand<E>;
    if constexpr (is_quad<E>) return add_product_of_quads(a, depth_stride, b, b_stride, depth);
    for (Index k = 0; k < depth; ++k) {
      typename O::Row row[Width];
#pragma GCC unroll 4
      for (int v = First; v < Width; ++v) row[v] = O::load(b + v * Vector<A>::lanes);
#pragma GCC unroll 16
      for (int r = 0; r < Rows; ++r) {
        auto const element = O::repeat(a[r * row_stride]);
#pragma GCC unroll 4
        for (int v = First; v < Width; ++v) of[r][v] = O::multiply_add(element, row[v], of[r][v]);
      }
      a += depth_stride;
      b += b_stride;
    }
  }
  /// The same for elements k of a packed group, beginning at its row `a`; depth is a multiple of the group's.
  template <int First = 0, class E>
  [[gnu::always_inline]] void add_product_of_group(E const* a, E const* b, Index depth) {
    using G = PackedGroup<E>;
    constexpr Index panel = Blocking<A>::panel;
    if constexpr (G::depth == 1) {
      add_product<First>(a, 1, G::rows, b, panel, depth);
    } else {
      for (Index k = 0; k < depth; k += G::depth)
        add_product(a + G::place(0, k), G::depth, 1, b + k * panel, panel, G::depth);
    }
  }

 private:
  /// Each product is a square: two rows of two columns. Square (r, c) is stored in of[2 * r + c % 2][c / 2].
  template <class E>
  [[gnu::always_inline]] void add_product_of_quads(E const* a, Index depth_stride, E const* b, Index b_stride,
                                                   Index depth) {
    using O = Operand<E>;
    constexpr int columns = Vector<A>::lanes / 2 * Width;
    exchange_rows_and_squares();
    for (Index k = 0; k < depth; ++k) {
      typename O::Row rows[Rows / 2];
#pragma GCC unroll 8
      for (int r = 0; r < Rows / 2; ++r) rows[r] = O::load(a + 2 * r);
#pragma GCC unroll 8
      for (int c = 0; c < columns; ++c) {
        auto const column = O::load(b + 2 * c);
#pragma GCC unroll 8
        for (int r = 0; r < Rows / 2; ++r) {
          Vector<A>& square = of[2 * r + c % 2][c / 2];
          square = O::multiply_add(rows[r], column, square);
        }
      }
      a += depth_stride;
      b += b_stride;
    }
    exchange_rows_and_squares();
  }
  /// Exchanges the second half of each even row's vectors for the first half of the next row's.
  [[gnu::always_inline]] void exchange_rows_and_squares() {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r += 2)
#pragma GCC unroll 4
      for (int v = 0; v < Width; ++v) {
        auto const even = of[r][v].native, odd = of[r + 1][v].native;
        of[r][v].native = __builtin_shufflevector(even, odd, 0, 1, 4, 5);
        of[r + 1][v].native = __builtin_shufflevector(even, odd, 2, 3, 6, 7);
      }
  }
};

/// Elements of a part of a logit, the sum of `depth` products. Long sums are split into shorter ones: the rounding error
/// of a sum grows with its length. A quad is added in two roundings.
template <class E>
constexpr Index part_of_sum(Index depth) {
  constexpr Index most = Blocking<typename Operand<E>::Sum>::sum_length, length = is_quad<E> ? most / 2 : most;
  return depth > 2 * length ? length : depth;
}

/// For multiply_vectors(): no result is hidden.
struct SeesAll {
  SeesAll from(Index) const { return {}; }
};

#if defined(ANNULUS_CPU_HAS_AMX)
/// multiply_vectors() on AMX tiles, for all vectors of the panel.
template <bool Maximum, class E, class A = typename Operand<E>::Sum>
[[gnu::always_inline]] inline void multiply_vectors_on_amx(E const* rows, Index row_count, E const* panel, Index depth,
                                                           A* result, Vector<A>* maximum, PrefetchQueue& ahead) {
  using B = Blocking<A>;
  using G = PackedGroup<E>;
  using Tiles = AmxSums<B::panel_vectors>;
  finish_stores();
  for (Index row = 0; row < row_count; row += G::rows) {
    A* const place = result + row * B::panel;
    ahead.next();
    Tiles::clear();
    for (Index k = 0; k < depth; k += G::depth) Tiles::add(rows + row * depth + k * G::rows, panel + k * B::panel);
    Tiles::store(place);
    // Of the group before: vectors must wait until the results of tiles are stored.
    if (Maximum && row > 0) raise_to_largest(place - G::rows * B::panel, G::rows, maximum);
  }
  if constexpr (Maximum) raise_to_largest(result + (G::rows_padded(row_count) - G::rows) * B::panel, G::rows, maximum);
}
#endif

/// result[row][lane] = sum over k < depth of rows[row][k] * panel[k][lane], for lanes of vectors from First on. `rows`:
/// packed groups. With Maximum, raises maximum[v] to the largest result of each lane. `see`, unless SeesAll:
/// see.of_rows(row)(r, v) are the lanes of vector v that see row `row` + r, r < micro_rows; results of others are -inf,
/// also in the vectors before First. Not for tiles.
template <bool Maximum, int First, class E, class A = typename Operand<E>::Sum, class See = SeesAll>
[[gnu::noinline]] void multiply_vectors(E const* rows, Index row_count, E const* panel, Index depth, A* result,
                                        Vector<A>* maximum, PrefetchQueue& ahead, See see = {}) {
  using B = Blocking<A>;
  using G = PackedGroup<E>;
  constexpr int vectors = B::panel_vectors - First;
#if defined(ANNULUS_CPU_HAS_AMX)
  if constexpr (G::tiled)
    if (amx_is_permitted())
      return multiply_vectors_on_amx<Maximum>(rows, row_count, panel, depth, result, maximum, ahead);
#endif
  Vector<A> largest[vectors];
  if constexpr (Maximum)
    for (int v = 0; v < vectors; ++v) largest[v] = maximum[v];
  panel += First * B::lanes;
  result += First * B::lanes;
  for (Index row = 0; row < row_count; row += B::micro_rows) {
    Sums<A, B::micro_rows, vectors> sums;
    A* const place = result + row * B::panel;
    ahead.next();
    Index const part = part_of_sum<E>(depth);
    Index k = 0;
    E const* const group = rows + row / G::rows * G::rows * depth + G::place(row % G::rows, 0);
    do {
      sums.clear();
      sums.add_product_of_group(group + G::place(0, k), panel + k * B::panel, std::min(part, depth - k));
      if (k > 0) sums.add(place, B::panel);
      k += part;
      if constexpr (!std::same_as<See, SeesAll>)
        if (k >= depth) sums.template hide<First>(see.of_rows(row));
      sums.store(place, B::panel);
    } while (k < depth);
    if constexpr (!std::same_as<See, SeesAll>)
      for (int r = 0; r < B::micro_rows; ++r)
        for (int v = 0; v < First; ++v)
          Vector<A>::of(empty_row<A>).store(place + r * B::panel + (v - First) * B::lanes);
    if constexpr (Maximum) {
#pragma GCC unroll 16
      for (int r = 0; r < B::micro_rows; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; ++v) largest[v] = larger(sums.of[r][v], largest[v]);
    }
  }
  if constexpr (Maximum)
    for (int v = 0; v < vectors; ++v) maximum[v] = largest[v];
}

/// The same for all lanes of the first `first_half_rows` rows, and for the second half of the panel of the others. What
/// is left is unspecified, with `see` -inf.
template <bool Maximum = false, class E, class A = typename Operand<E>::Sum, class See = SeesAll>
void multiply_rows(E const* rows, Index row_count, Index first_half_rows, E const* panel, Index depth, A* result,
                   PrefetchQueue& ahead, Vector<A>* maximum = nullptr, See const& see = {}) {
  using B = Blocking<A>;
  multiply_vectors<Maximum, 0>(rows, first_half_rows, panel, depth, result, maximum, ahead, see);
  if constexpr (PackedGroup<E>::halves)
    multiply_vectors<Maximum, B::half>(rows + first_half_rows * depth, row_count - first_half_rows, panel, depth,
                                       result + first_half_rows * B::panel, Maximum ? maximum + B::half : maximum,
                                       ahead, see.from(first_half_rows));
}

/// result[d][lane] += sum over k < depth of columns[k][d] * panel[k][lane], for d < dim; from k = first_half_depth on,
/// for the second half of the panel alone. Without `adds`, the result becomes the sum, whatever it is before.
/// `columns`: packed groups whose rows are the columns d, `group_stride` apart; dim is a multiple of their rows, depth
/// of their depth.
template <class E, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void add_product_of_columns(E const* columns, Index group_stride, E const* panel, Index depth,
                                              Index first_half_depth, A* result, Index dim, PrefetchQueue& ahead,
                                              bool adds = true) {
  using B = Blocking<A>;
  using G = PackedGroup<E>;
#if defined(ANNULUS_CPU_HAS_AMX)
  if constexpr (G::tiled)
    if (amx_is_permitted()) {
      if (!adds) std::fill_n(result, dim * B::panel, A(0));
      finish_stores();
      using Tiles = AmxSums<B::panel_vectors>;
      for (Index d = 0; d < dim; d += G::rows) {
        ahead.next();
        Tiles::load(result + d * B::panel);
        for (Index k = 0; k < depth; k += G::depth)
          Tiles::add(columns + d / G::rows * group_stride + k * G::rows, panel + k * B::panel);
        Tiles::store(result + d * B::panel);
      }
      return;
    }
#endif
  // Added, so that a sum of -0 becomes 0, as when it is added to a result.
  alignas(64) static constexpr A zeros[B::panel]{};
  for (Index d = 0; d < dim; d += B::micro_rows) {
    Sums<A, B::micro_rows, B::panel_vectors> sums;
    ahead.next();
    E const* const group = columns + d / G::rows * group_stride + G::place(d % G::rows, 0);
    sums.clear();
    sums.add_product_of_group(group, panel, first_half_depth);
    if constexpr (G::halves)
      sums.template add_product_of_group<B::half>(group + G::place(0, first_half_depth),
                                                  panel + first_half_depth * B::panel, depth - first_half_depth);
    if (adds)
      sums.add(result + d * B::panel, B::panel);
    else
      sums.add(zeros, 0);
    sums.store(result + d * B::panel, B::panel);
  }
}

/// Rows from `first` on of a matrix that is stored in strips of one to three vectors of columns. Each strip is dense,
/// so that a product reads memory in order: strip [d, d + width) begins at capacity * d.
template <class E>
struct StripRows {
  E* data;
  Index capacity;  ///< rows of the matrix
  Index first = 0;

  /// The strip of `width` columns from column d on.
  E* strip(Index d, Index width) const { return data + d * capacity + first * width; }
};

/// Calls function(d, integral_constant<width in vectors>) for each strip of a matrix that elements E are multiplied to.
/// dim: columns, a multiple of the lanes.
template <class E, class Function>
void for_each_strip(Index dim, Function&& function) {
  constexpr Index lanes = Vector<typename Operand<E>::Sum>::lanes;
  for (Index d = 0; d < dim;) {
    Index const vectors = (dim - d) / lanes;
    // A strip of one vector would leave most of the multipliers idle: four vectors become two strips of two. Tiles
    // multiply two by two.
    Index const width = !PackedGroup<E>::tiled && vectors >= 3 && vectors != 4 ? 3 : std::min<Index>(vectors, 2);
    if (width == 3)
      function(d, std::integral_constant<int, 3>());
    else if (width == 2)
      function(d, std::integral_constant<int, 2>());
    else
      function(d, std::integral_constant<int, 1>());
    d += width * lanes;
  }
}

/// Products of panels that tiles sum before they add them to rows in memory: reading and writing these takes longer
/// than a product. More would not stay in L2 cache.
inline constexpr Index most_row_factors = 4;

/// For each micro_rows rows of a block, a lane of the panel, even, before which their factors are 0.
template <class A>
using FirstLanes = std::array<std::uint8_t, Blocking<A>::key_block / Blocking<A>::micro_rows>;

/// Factors of a product over the lanes k of a panel: rows [first, first + count) of the result get the sums of
/// a[row - first][k] * b[k][d]. a: [row][k], quads in packed groups of rows. first_lanes: of the rows of a; all 0 for
/// quads. Counts: multiples of a packed group's rows, first too with tiles.
template <class E>
struct RowFactors {
  E const* a;
  StripRows<E const> b;
  Index first, count;
  FirstLanes<typename Operand<E>::Sum> const* first_lanes;
};

template <int Width, class E, class A = typename Operand<E>::Sum>
[[gnu::noinline]] void add_product_to_strip(E const* a, E const* b, A* result, Index row_count,
                                            FirstLanes<A> const& first_lanes) {
  using B = Blocking<A>;
  constexpr Index stride = Width * B::lanes, depth = B::panel / Operand<E>::depth;
  // The rows of a packed group of quads alternate.
  constexpr Index row_stride = is_quad<E> ? 1 : depth, depth_stride = is_quad<E> ? PackedGroup<E>::rows : 1;
  for (Index row = 0; row < row_count; row += B::micro_rows) {
    Sums<A, B::micro_rows, Width> sums;
    sums.clear();
    Index const from = first_lanes[static_cast<std::size_t>(row / B::micro_rows)] / Operand<E>::depth;
    sums.add_product(a + row * depth + from, row_stride, depth_stride, b + from * stride, stride, depth - from);
    sums.add(result + row * stride, stride);
    sums.store(result + row * stride, stride);
  }
}

#if defined(ANNULUS_CPU_HAS_AMX)
/// The same for all factors that have a row: their products are summed in tiles.
template <int Width>
[[gnu::noinline]] void add_products_to_strip(std::span<RowFactors<BfloatPair> const> factors, Index column,
                                             float* result) {
  constexpr Index group = PackedGroup<BfloatPair>::rows, width = Width * amx_tile_side;
  static_assert(group == 2 * amx_tile_side && Blocking<float>::panel == group);
  finish_stores();
  for (Index row = 0; row < Blocking<float>::key_block; row += group) {
    bool begun = false;
    for (RowFactors<BfloatPair> const& factor : factors) {
      if (row < factor.first || factor.first + factor.count <= row) continue;
      if (!begun) AmxSums<Width>::load(result + row * width);
      begun = true;
      AmxSums<Width>::add(factor.a + (row - factor.first) * amx_tile_side, factor.b.strip(column, width));
    }
    if (begun) AmxSums<Width>::store(result + row * width);
  }
}
#endif

/// result[row][d] += sum over factors, at most most_row_factors, and lanes k of a[row][k] * b[k][d]; dim is a multiple
/// of the lanes.
template <class E, class A = typename Operand<E>::Sum>
void add_products_of_rows(std::span<RowFactors<E> const> factors, StripRows<A> result, Index dim) {
  for_each_strip<E>(dim, [&]<int Width>(Index d, std::integral_constant<int, Width>) {
    constexpr Index width = Width * Blocking<A>::lanes;
#if defined(ANNULUS_CPU_HAS_AMX)
    if constexpr (PackedGroup<E>::tiled && Width < 3)
      if (amx_is_permitted()) return add_products_to_strip<Width>(factors, d, result.strip(d, width));
#endif
    for (RowFactors<E> const& factor : factors)
      add_product_to_strip<Width>(factor.a, factor.b.strip(d, width), result.strip(d, width) + factor.first * width,
                                  factor.count, *factor.first_lanes);
  });
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
