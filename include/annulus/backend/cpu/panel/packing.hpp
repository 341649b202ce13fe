#pragma once
// Packing of operands with any strides into the blocks that the products read, and unpacking of results.

#include <algorithm>
#include <bit>
#include <bitset>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "annulus/backend/cpu/panel/extents.hpp"
#include "annulus/backend/cpu/panel/products.hpp"
#include "annulus/backend/cpu/simd/prefetch.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Set of rows of a panel or key block.
using RowSet = std::bitset<Blocking<float>::key_block>;

/// Calls function(row) for each row of the set in [begin, end).
template <class Function>
void for_each_row_in(RowSet const& set, Index begin, Index end, Function&& function) {
  if (set.none()) return;
  for (Index row = begin; row < end; ++row)
    if (set[static_cast<std::size_t>(row)]) function(row);
}

/// Bits of an element. Shifted left by one, without the sign, they compare as magnitudes: 16-bit elements need not be
/// converted, so that a vector of them is compared at a time.
template <class T>
using ElementBits =
    std::conditional_t<sizeof(T) == 8, std::uint64_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
template <class T>
[[gnu::always_inline]] inline ElementBits<T> magnitude(T const& x) {
  return static_cast<ElementBits<T>>(Eigen::numext::bit_cast<ElementBits<T>>(x) << 1);
}

/// True if all elements are finite, so that multiplying the row by 0 cannot give NaN.
template <class T>
bool all_finite(T const* row, Index dim_stride, Index dim) {
  auto const largest_magnitude = [&](Index stride) __attribute__((always_inline)) {
    ElementBits<T> largest = 0;
    for (Index d = 0; d < dim; ++d) largest = std::max(largest, magnitude(row[d * stride]));
    return largest;
  };
  return (dim_stride == 1 ? largest_magnitude(1) : largest_magnitude(dim_stride)) <
         magnitude(std::numeric_limits<T>::infinity());
}

/// True if all elements of `count` contiguous rows are finite. Null rows are. Faster than row by row: the largest of
/// the lanes is found once.
template <class T>
bool all_finite(T const* const* rows, Index count, Index dim) {
  using Bits [[gnu::vector_size(vector_bytes)]] = ElementBits<T>;
  constexpr Index lanes = vector_bytes / static_cast<int>(sizeof(T));
  Bits largest{};
  bool rests = true;
  for (Index i = 0; i < count; ++i) {
    if (!rows[i]) continue;
    Index d = 0;
    for (Bits bits; d + lanes <= dim; d += lanes) {
      std::memcpy(&bits, rows[i] + d, sizeof bits);
      bits <<= 1;
      largest = bits > largest ? bits : largest;
    }
    if (d < dim) rests = rests && all_finite(rows[i] + d, 1, dim - d);
  }
  Bits const infinite = Bits{} + magnitude(std::numeric_limits<T>::infinity());
  auto const wrong = largest >= infinite;
  bool any = false;
  for (Index lane = 0; lane < lanes; ++lane) any = any || wrong[lane] != 0;
  return rests && !any;
}

/// `row`, or null if it holds NaN or infinity; then inserts i into `not_finite`. A null row stays null.
template <class T>
T const* finite_row(T const* row, Index dim_stride, Index dim, Index i, RowSet& not_finite) {
  if (!row || all_finite(row, dim_stride, dim)) return row;
  not_finite.set(static_cast<std::size_t>(i));
  return nullptr;
}

/// Sets finite[i] to finite_row() of rows[i] for i < count; row i has number first + i.
template <class T>
void find_finite_rows(T const* const* rows, Index dim_stride, Index dim, Index first, Index count, RowSet& not_finite,
                      T const** finite) {
  bool const all = dim_stride == 1 && all_finite(rows, count, dim);
  for (Index i = 0; i < count; ++i)
    finite[i] = all ? rows[i] : finite_row(rows[i], dim_stride, dim, first + i, not_finite);
}

inline std::uint32_t bits_of(Eigen::bfloat16 const& x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }

/// Joins bfloat16 to a pair or quad; bits(r): the bits of number r.
template <class E, class Bits>
[[gnu::always_inline]] inline E join(Bits&& bits) {
  using Word = decltype(E::bits);
  return [&]<int... R>(std::integer_sequence<int, R...>) __attribute__((always_inline)) {
    return E{(... | (Word{bits(R)} << (16 * R)))};
  }
  (std::make_integer_sequence<int, Operand<E>::depth>());
}

/// Packed element k of a row along dim. A pair has elements 2 k and 2 k + 1 of the row, 0 beyond its end; a quad four.
template <class E, class T>
E packed_element(T const* row, Index dim_stride, Index dim, Index k) {
  if constexpr (is_joined<E>) {
    return join<E>([&](int r) {
      Index const d = Operand<E>::depth * k + r;
      return d < dim ? bits_of(row[d * dim_stride]) : 0u;
    });
  } else {
    return static_cast<E>(row[k * dim_stride]);
  }
}

/// Number of packed elements in a vector.
template <class E>
inline constexpr Index packed_lanes = vector_bytes / static_cast<int>(sizeof(E));

/// A vector of packed elements of a contiguous row; of pairs and quads the bits, for data movement only, not for
/// arithmetic.
template <class E, class T>
[[gnu::always_inline]] inline auto load_packed(T const* from) {
  if constexpr (is_pair<E>)
    return Vector<float>::load(from);
  else if constexpr (is_quad<E>)
    return Vector<double>::load(from);
  else
    return load_widened<E>(from);
}

/// Packs `count` elements of one row, or of two or four rows joined, from the results of element(row, d).
template <class E, class T, class Element>
[[gnu::always_inline]] inline void join_rows(T const* const* rows, Index count, E* to, Element&& element) {
  for (Index d = 0; d < count; ++d)
    if constexpr (is_joined<E>)
      to[d] = join<E>([&](int r) __attribute__((always_inline)) { return bits_of(element(rows[r], d)); });
    else
      to[d] = static_cast<E>(element(rows[0], d));
}

/// The same for elements [first, first + Count) of contiguous rows.
template <Index Count, class E, class T>
[[gnu::always_inline]] inline void pack_contiguous(T const* const* rows, Index first, E* to) {
  if constexpr (std::same_as<T, E>)
    std::memcpy(to, rows[0] + first, Count * sizeof(E));
  else
    join_rows(
        rows, Count, to, [&](T const* row, Index d) __attribute__((always_inline)) { return row[first + d]; });
}

/// The same for rows of any stride. Null rows and elements from `dim` on are zeros.
template <Index Count, class E, class T>
void pack_joined(T const* const* rows, Index dim_stride, Index first, Index dim, E* to) {
  Index const present = std::clamp<Index>(dim - first, 0, Count);
  bool const all = std::find(rows, rows + Operand<E>::depth, nullptr) == rows + Operand<E>::depth;
  if (dim_stride == 1 && all && present == Count) return pack_contiguous<Count>(rows, first, to);
  join_rows(rows, present, to, [&](T const* row, Index d) { return row ? row[(first + d) * dim_stride] : T(0); });
  std::fill_n(to + present, Count - present, E{});
}

/// Packs groups of AMX tiles, [dim / group][key_block / 2 / lanes][group][lanes]: pairs of neighbouring rows, `lanes`
/// of them in a row of a tile. Null rows are zeros.
template <class T>
void pack_column_tiles(T const* const* rows, Index dim_stride, Index dim, BfloatPair* to) {
  constexpr Index group = PackedGroup<BfloatPair>::rows, lanes = Blocking<float>::lanes;
  constexpr Index pairs = Blocking<float>::key_block / 2;
  for (Index begin = 0; begin < PackedGroup<BfloatPair>::rows_padded(dim); begin += lanes)
    for (Index first = 0; first < pairs; first += lanes) {
      Vector<float> tile[lanes];
      for (Index j = 0; j < lanes; ++j) {
        BfloatPair of_rows[lanes];
        T const* const both[] = {rows[2 * (first + j)], rows[2 * (first + j) + 1]};
        pack_joined<lanes>(both, dim_stride, begin, dim, of_rows);
        tile[j] = Vector<float>::load(of_rows);
      }
      interleave(tile);
      BfloatPair* const place = to + begin / group * group * pairs + first * group + begin % group * lanes;
      for (Index d = 0; d < lanes; ++d) tile[d].store(place + d * lanes);
    }
}

/// Rows are prefetched this many rows before they are packed: the rows of a head are far apart.
inline constexpr Index rows_ahead = 16;

/// Packs `count` > 0 rows from `first` into groups (PackedGroup) of elements along dim. The last group is padded with
/// copies of its last row, so that a maximum over the group equals that over its rows.
template <class E, class T>
void pack_row_groups(HeadView<T const> const& from, Index first, Index count, Index dim, E* to) {
  using G = PackedGroup<E>;
  constexpr Index group = G::rows, lanes = packed_lanes<E>, joined = Operand<E>::depth;
  Index const depth = G::elements(dim);
  for (Index begin = 0; begin < count; begin += group) {
    T const* rows[group];
    for (Index r = 0; r < group; ++r) {
      rows[r] = from.row(first + std::min(begin + r, count - 1));
      if (begin + r + rows_ahead < count) prefetch_row(from.row(first + begin + r + rows_ahead), from.dim_stride, dim);
    }
    Index k = 0;
    auto const has_vector = [&] { return from.dim_stride == 1 && joined * (k + lanes) <= dim; };
    if constexpr (G::tiled) {
      for (; k < depth; k += lanes)
        for (T const* row : rows) {
          if (has_vector())
            load_packed<E>(row + joined * k).store(to);
          else
            for (Index i = 0; i < lanes; ++i) to[i] = packed_element<E>(row, from.dim_stride, dim, k + i);
          to += lanes;
        }
    } else {
      for (; has_vector(); k += lanes, to += group * lanes) {
        decltype(load_packed<E>(rows[0])) block[group];
        for (Index r = 0; r < group; ++r) block[r] = load_packed<E>(rows[r] + joined * k);
        interleave(block);
        for (Index r = 0; r < group; ++r) block[r].store(to + r * lanes);
      }
      for (; k < depth; ++k, to += group)
        for (Index r = 0; r < group; ++r) to[r] = packed_element<E>(rows[r], from.dim_stride, dim, k);
    }
  }
}

/// Packs `count` rows from `first`, transposed, into groups: row d of the groups holds element d of all rows, joined if
/// E is a pair or quad, key_block rows deep. Padding, and rows that hold NaN or infinity, which are inserted into
/// `not_finite`, are zeros.
template <class E, class T>
void pack_column_groups(HeadView<T const> const& from, Index first, Index count, Index dim, E* to, RowSet& not_finite) {
  using A = typename Operand<E>::Sum;
  constexpr Index group = PackedGroup<E>::rows, joined = Operand<E>::depth, rows = Blocking<A>::key_block;
  not_finite.reset();
  T const* all[rows];
  auto const find_finite = [&](Index begin, Index end) {
    for (Index j = begin; j < end; ++j) all[j] = j < count ? from.row(first + j) : nullptr;
    find_finite_rows<T>(all + begin, from.dim_stride, dim, begin, end - begin, not_finite, all + begin);
  };
  if constexpr (PackedGroup<E>::tiled) {
    find_finite(0, rows);
    pack_column_tiles(all, from.dim_stride, dim, to);
  } else {
    // Some rows at a time: groups are a large power of two apart, so that their cache lines map to the same cache sets.
    constexpr Index at_once = 16;
    for (Index begin = 0; begin < count; begin += at_once) {
      Index const end = std::min(begin + at_once, annulus::detail::ceil_divide(count, joined) * joined);
      for (Index j = begin; j < end; ++j)
        if (j + rows_ahead < count) prefetch_row(from.row(first + j + rows_ahead), from.dim_stride, dim);
      find_finite(begin, end);
      bool const plain = from.dim_stride == 1 && std::find(all + begin, all + end, nullptr) == all + end;
      for (Index d = 0; d < dim; d += group) {
        E* place = to + (d * rows + begin * group) / joined;
        if (plain && d + group <= dim)
#pragma GCC unroll 4
          for (Index i = 0; i < end - begin; i += joined, place += group)
            pack_contiguous<group>(all + begin + i, d, place);
        else
          for (Index i = 0; i < end - begin; i += joined, place += group)
            pack_joined<group>(all + begin + i, from.dim_stride, d, dim, place);
      }
    }
  }
}

/// Packs `count` rows, those of a panel, into strips (see for_each_strip) of as many rows, or of half as many pairs or
/// a quarter as many quads of rows. Padding columns, null rows, and rows that hold NaN or infinity, which are inserted
/// into `not_finite`, are zeros.
template <class E, class T>
void pack_strips(T const* const* rows, Index dim_stride, Index count, Index dim, E* to, RowSet& not_finite) {
  using A = typename Operand<E>::Sum;
  constexpr Index joined = Operand<E>::depth;
  not_finite.reset();
  T const* finite[Blocking<A>::panel];
  find_finite_rows<T>(rows, dim_stride, dim, 0, count, not_finite, finite);
  for (Index i = 0; i < count; i += joined) {
    for_each_strip<E>(Blocking<A>::dim_padded(dim), [&]<int Width>(Index d, std::integral_constant<int, Width>) {
      constexpr Index width = Width * Blocking<A>::lanes;
      pack_joined<width>(finite + i, dim_stride, d, dim, to + (d * count + i * width) / joined);
    });
  }
}

/// Adds `columns` sums to a row; `overwrites`: replaces it instead, as where T is not the type of sums.
template <class A, class T>
[[gnu::always_inline]] inline void add_columns(A const* from, Index columns, T* row, bool overwrites) {
  using V = Vector<A>;
  Index d = 0;
  if constexpr (!std::is_same_v<T, A>) {
    for (; d + V::lanes <= columns; d += V::lanes) store_result(V::zero() + V::load(from + d), row + d);
    for (; d < columns; ++d) row[d] = static_cast<T>(A(0) + from[d]);
  } else if (overwrites) {
    for (; d < columns; ++d) row[d] = A(0) + from[d];
  } else {
    for (; d < columns; ++d) row[d] += from[d];
  }
}

/// Adds `count` rows of strips (see for_each_strip) of `capacity` rows to rows of unit stride, `row_stride` apart;
/// `overwrites`: replaces the rows instead, whatever they hold; so it does if T is not the type of sums.
template <class E, class T, class A = typename Operand<E>::Sum>
void add_strips(A const* from, Index capacity, Index count, Index dim, T* rows, Index row_stride, bool overwrites) {
  for (Index i = 0; i < count; ++i) {
    if (i + rows_ahead < count) prefetch_row(rows + (i + rows_ahead) * row_stride, 1, dim);
    for_each_strip<E>(Blocking<A>::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      constexpr Index width = Width * Blocking<A>::lanes;
      A const* const place = from + begin * capacity + i * width;
      T* const row = rows + i * row_stride + begin;
      if (dim - begin >= width)
        add_columns(place, width, row, overwrites);
      else
        add_columns(place, dim - begin, row, overwrites);
    });
  }
}

/// Sets lane i of a panel [dim][panel] to rows[i] times `scale`, or to zeros if that row is null. Pairs and quads,
/// along dim, are not scaled.
template <class E, class T>
void pack_panel(T const* const* rows, Index dim_stride, Index dim, typename Operand<E>::Sum scale, E* to) {
  using V = decltype(load_packed<E>(rows[0]));
  constexpr Index panel = Blocking<typename Operand<E>::Sum>::panel, lanes = V::lanes, joined = Operand<E>::depth;
  static constexpr T zeros[joined * lanes]{};
  Index k = 0;
  if (dim_stride == 1)
    for (; joined * (k + lanes) <= dim; k += lanes)
      for (Index first = 0; first < panel; first += lanes) {
        V block[lanes];
        for (Index i = 0; i < lanes; ++i) {
          block[i] = load_packed<E>(rows[first + i] ? rows[first + i] + joined * k : zeros);
          if constexpr (!is_joined<E>) block[i] = block[i] * V::of(scale);
        }
        interleave(block);
        for (Index d = 0; d < lanes; ++d) block[d].store(to + (k + d) * panel + first);
      }
  for (; k < PackedGroup<E>::elements(dim); ++k)
    for (Index i = 0; i < panel; ++i) {
      E& element = to[k * panel + i] = E{};
      if (!rows[i]) continue;
      element = packed_element<E>(rows[i], dim_stride, dim, k);
      if constexpr (!is_joined<E>) element *= scale;
    }
}

/// Calls write(i, d, elements) for all elements of each lane i of a panel [dim][panel]: a vector of them from d on, or
/// that of d alone. `factor`, unless null, of the lanes of each vector of the panel: elements are multiplied by it.
template <class A, class Write>
[[gnu::always_inline]] inline void unpack_lanes(A* panel_block, Index dim, Vector<A> const* factor, Write&& write) {
  constexpr Index panel = Blocking<A>::panel, lanes = Blocking<A>::lanes;
  auto const element = [&](Index d, Index first) __attribute__((always_inline)) {
    Vector<A> const lanes_of_row = Vector<A>::load(panel_block + d * panel + first);
    return factor ? lanes_of_row * factor[first / lanes] : lanes_of_row;
  };
  Index begin = 0;
  for (; begin + lanes <= dim; begin += lanes)
    for (Index first = 0; first < panel; first += lanes) {
      Vector<A> block[lanes];
      for (Index d = 0; d < lanes; ++d) block[d] = element(begin + d, first);
      interleave(block);
      for (Index i = 0; i < lanes; ++i) write(first + i, begin, block[i]);
    }
  for (Index d = begin; factor && d < dim; ++d)
    for (Index first = 0; first < panel; first += lanes) element(d, first).store(panel_block + d * panel + first);
  for (Index i = 0; i < panel; ++i)
    for (Index d = begin; d < dim; ++d) write(i, d, panel_block[d * panel + i]);
}

/// Inverse of pack_panel: rows[i], of unit stride, becomes kept[i] * rows[i] plus lane i of the panel, see
/// unpack_lanes(). If kept[i] is 0 the old row is not read. Null rows are skipped.
template <class A>
void unpack_panel(A* panel_block, Index dim, Vector<A> const* factor, A const* kept, A* const* rows) {
  using V = Vector<A>;
  unpack_lanes(
      panel_block, dim,
      factor, [&]<class Elements>(Index i, Index d, Elements elements) __attribute__((always_inline)) {
        if (!rows[i]) return;
        A* const place = rows[i] + d;
        if constexpr (std::is_same_v<Elements, V>) {
          if (kept[i] != A(0)) elements = multiply_add(V::load(place), V::of(kept[i]), elements);
          elements.store(place);
        } else {
          *place = kept[i] == A(0) ? elements : *place * kept[i] + elements;
        }
      });
}

/// rows[i], of unit stride, becomes scale[i] times lane i of the panel, see unpack_lanes(). Null rows are skipped.
template <class A, class T>
void unpack_results(A* panel_block, Index dim, Vector<A> const* factor, A const* scale, T* const* rows) {
  using V = Vector<A>;
  unpack_lanes(
      panel_block, dim,
      factor, [&]<class Elements>(Index i, Index d, Elements elements) __attribute__((always_inline)) {
        if (!rows[i]) return;
        if constexpr (std::is_same_v<Elements, V>)
          store_result(elements * V::of(scale[i]), rows[i] + d);
        else
          rows[i][d] = static_cast<T>(elements * scale[i]);
      });
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
