#pragma once
// Packing of operands with any strides into the blocks that the products read, and unpacking of results.

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "annulus/backend/cpu/products.hpp"
#include "annulus/backend/step.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Rows of one head of a tensor [batch, sequence, heads, dim].
template <class T>
struct HeadRows {
  T* data;
  Index row_stride, dim_stride;

  HeadRows(TensorView<T, 4> const& view, Index batch, Index head)
      : data(view.data() + view.offset(batch, 0, head, 0)),
        row_stride(view.stride(axis::sequence)),
        dim_stride(view.stride(axis::dim)) {}

  T* row(Index i) const { return data + i * row_stride; }
};

/// Extents of keys and values: as given, in packed elements E, and padded to whole vectors or groups.
template <class E>
struct PackedExtents {
  using B = Blocking<typename Operand<E>::Sum>;
  using G = PackedGroup<E>;
  Index keys, head_dim, value_dim;

  template <class T>
  explicit PackedExtents(StepOperands<T, HostMemory> const& operands)
      : keys(operands.k.extent(axis::sequence)),
        head_dim(operands.q.extent(axis::dim)),
        value_dim(operands.v.extent(axis::dim)) {}

  Index blocks() const { return B::key_blocks(keys); }
  Index head_depth() const { return G::elements(head_dim); }
  Index value_depth() const { return G::elements(value_dim); }
  /// Padded to whole vectors.
  Index head_dim_padded() const { return B::dim_padded(head_dim); }
  Index value_dim_padded() const { return B::dim_padded(value_dim); }
  /// Padded to whole groups of columns.
  Index head_dim_grouped() const { return G::rows_padded(head_dim); }
  Index value_dim_grouped() const { return G::rows_padded(value_dim); }
  /// Packed elements of all keys, and of one block of values.
  Index key_elements() const { return G::rows_padded(keys) * head_depth(); }
  Index value_elements() const { return B::key_block / Operand<E>::depth * value_dim_grouped(); }
};

/// Set of rows of a block, one bit each.
class RowSet {
 public:
  void clear() { words_ = {}; }
  bool empty() const { return (words_[0] | words_[1]) == 0; }
  void insert(Index row) { words_[static_cast<std::size_t>(row / 64)] |= std::uint64_t{1} << (row % 64); }
  void insert(RowSet const& other) {
    for (std::size_t w = 0; w < words_.size(); ++w) words_[w] |= other.words_[w];
  }

  /// Calls function(row) for each row of the set in [begin, end).
  template <class Function>
  void for_each_in(Index begin, Index end, Function&& function) const {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::uint64_t rest = words_[w]; rest; rest &= rest - 1) {
        Index const row = static_cast<Index>(w) * 64 + std::countr_zero(rest);
        if (begin <= row && row < end) function(row);
      }
  }

 private:
  std::array<std::uint64_t, 2> words_{};
};

namespace detail {

/// Largest magnitude of `count` elements, as the bits of the value without its sign, shifted left by one.
template <class A, class T>
auto largest_magnitude(T const* row, Index stride, Index count) {
  using Bits = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
  Bits largest = 0;
  for (Index d = 0; d < count; ++d) {
    Bits const magnitude = std::bit_cast<Bits>(static_cast<A>(row[d * stride])) << 1;
    largest = largest < magnitude ? magnitude : largest;
  }
  return largest;
}

}  // namespace detail

/// True if all elements are finite, so that multiplying the row by 0 cannot give NaN.
template <class A, class T>
bool all_finite(T const* row, Index dim_stride, Index dim) {
  auto const infinite =
      std::bit_cast<decltype(detail::largest_magnitude<A>(row, 1, 0))>(std::numeric_limits<A>::infinity()) << 1;
  return (dim_stride == 1 ? detail::largest_magnitude<A>(row, 1, dim)
                          : detail::largest_magnitude<A>(row, dim_stride, dim)) < infinite;
}

namespace detail {

/// `row`, or null if it holds NaN or infinity; then inserts i into `not_finite`.
template <class A, class T>
T const* finite_row(T const* row, Index dim_stride, Index dim, Index i, RowSet& not_finite) {
  if (all_finite<A>(row, dim_stride, dim)) return row;
  not_finite.insert(i);
  return nullptr;
}

using Bfloat = Eigen::bfloat16;

inline std::uint32_t bits_of(Bfloat const& x) { return Eigen::numext::bit_cast<std::uint16_t>(x); }

/// Elements 2 k and 2 k + 1 of a row of dim elements; 0 beyond the end of the row.
inline BfloatPair pair_of_row(Bfloat const* row, Index dim_stride, Index dim, Index k) {
  auto const bits = [&](Index d) { return d < dim ? bits_of(row[d * dim_stride]) : 0u; };
  return {bits(2 * k) | bits(2 * k + 1) << 16};
}

/// Bits of `lanes` pairs of a contiguous row; for data movement only, not for arithmetic.
inline Vector<float> load_pairs(Bfloat const* from) {
  Vector<float> pairs;
  std::memcpy(&pairs.native, from, sizeof pairs.native);
  return pairs;
}
inline void store_pairs(Vector<float> pairs, BfloatPair* to) { std::memcpy(to, &pairs.native, sizeof pairs.native); }

/// Sets to[d] = (upper[first + d], lower[first + d]) for d < dim, and zeros up to `padded`; null rows are zeros.
inline void pair_rows(Bfloat const* upper, Bfloat const* lower, Index first, Index dim_stride, Index dim, Index padded,
                      BfloatPair* to) {
  auto const element = [&](Bfloat const* row, Index d) { return row ? bits_of(row[(first + d) * dim_stride]) : 0u; };
  if (upper && lower && dim_stride == 1)
    for (Index d = 0; d < dim; ++d) to[d].bits = bits_of(upper[first + d]) | bits_of(lower[first + d]) << 16;
  else
    for (Index d = 0; d < dim; ++d) to[d].bits = element(upper, d) | element(lower, d) << 16;
  for (Index d = dim; d < padded; ++d) to[d].bits = 0;
}

/// Copies pairs [k, k + lanes) of a row.
inline void copy_pairs(Bfloat const* row, Index dim_stride, Index dim, Index k, BfloatPair* to) {
  constexpr Index lanes = Blocking<float>::lanes;
  if (dim_stride == 1 && 2 * (k + lanes) <= dim)
    store_pairs(load_pairs(row + 2 * k), to);
  else
    for (Index i = 0; i < lanes; ++i) to[i] = pair_of_row(row, dim_stride, dim, k + i);
}

/// Packed elements E of a row along dim: element k, and a vector of contiguous ones, whose bits may be moved.
template <class E, class T>
E packed_element(T const* row, Index dim_stride, Index dim, Index k) {
  if constexpr (is_pair<E>)
    return pair_of_row(row, dim_stride, dim, k);
  else
    return static_cast<E>(row[k * dim_stride]);
}
template <class E, class T>
[[gnu::always_inline]] inline auto load_packed(T const* from) {
  if constexpr (is_pair<E>)
    return load_pairs(from);
  else
    return load_widened<E>(from);
}
template <class A>
[[gnu::always_inline]] inline void store_packed(Vector<A> elements, A* to) {
  elements.store(to);
}
inline void store_packed(Vector<float> elements, BfloatPair* to) { store_pairs(elements, to); }

/// Packs one group of AMX tiles: [depth / lanes][rows][lanes] pairs along dim.
template <std::size_t Rows>
void pack_row_tiles(Bfloat const* const (&rows)[Rows], Index dim_stride, Index dim, Index depth, BfloatPair* to) {
  constexpr Index lanes = Blocking<float>::lanes;
  for (Index k = 0; k < depth; k += lanes)
    for (Bfloat const* row : rows) {
      copy_pairs(row, dim_stride, dim, k, to);
      to += lanes;
    }
}

/// Packs groups of AMX tiles, [dim / group][key_block / 2 / lanes][group][lanes]: pairs of neighbouring rows, `lanes`
/// of them in a row of a tile. Null rows are zeros.
inline void pack_column_tiles(Bfloat const* const* rows, Index dim_stride, Index dim, BfloatPair* to) {
  constexpr Index group = PackedGroup<BfloatPair>::rows, lanes = Blocking<float>::lanes;
  constexpr Index pairs = Blocking<float>::key_block / 2;
  for (Index begin = 0; begin < PackedGroup<BfloatPair>::rows_padded(dim); begin += lanes)
    for (Index first = 0; first < pairs; first += lanes) {
      Vector<float> tile[lanes];
      for (Index j = 0; j < lanes; ++j) {
        BfloatPair of_rows[lanes];
        Bfloat const* const* const both = rows + 2 * (first + j);
        pair_rows(both[0], both[1], begin, dim_stride, std::clamp<Index>(dim - begin, 0, lanes), lanes, of_rows);
        std::memcpy(&tile[j].native, of_rows, sizeof of_rows);
      }
      interleave(tile);
      BfloatPair* const place = to + begin / group * group * pairs + first * group + begin % group * lanes;
      for (Index d = 0; d < lanes; ++d) store_pairs(tile[d], place + d * lanes);
    }
}

}  // namespace detail

/// Packs `count` > 0 rows from `first` into groups (PackedGroup) of elements along dim. The last group is padded with
/// copies of its last row, so that a maximum over the group equals that over its rows.
template <class E, class T>
void pack_row_groups(HeadRows<T const> const& from, Index first, Index count, Index dim, E* to) {
  using G = PackedGroup<E>;
  using A = typename Operand<E>::Sum;
  constexpr Index group = G::rows, lanes = Blocking<A>::lanes, pair = Operand<E>::depth;
  Index const depth = G::elements(dim);
  for (Index begin = 0; begin < count; begin += group) {
    T const* rows[group];
    for (Index r = 0; r < group; ++r) rows[r] = from.row(first + std::min(begin + r, count - 1));
    if constexpr (G::tiled) {
      detail::pack_row_tiles(rows, from.dim_stride, dim, depth, to + begin * depth);
      continue;
    }
    Index k = 0;
    if (from.dim_stride == 1)
      for (; pair * (k + lanes) <= dim; k += lanes, to += group * lanes) {
        Vector<A> block[group];
        for (Index r = 0; r < group; ++r) block[r] = detail::load_packed<E>(rows[r] + pair * k);
        interleave(block);
        for (Index r = 0; r < group; ++r) detail::store_packed(block[r], to + r * lanes);
      }
    for (; k < depth; ++k, to += group)
      for (Index r = 0; r < group; ++r) to[r] = detail::packed_element<E>(rows[r], from.dim_stride, dim, k);
  }
}

/// Packs `count` rows from `first`, transposed, into groups: row d of the groups holds element d of all rows, key_block
/// deep, padded with zeros. Rows that hold NaN or infinity are packed as zeros and inserted into `not_finite`.
template <std::floating_point A, class T>
void pack_column_groups(HeadRows<T const> const& from, Index first, Index count, Index dim, A* to, RowSet& not_finite) {
  constexpr Index group = PackedGroup<A>::rows, block = Blocking<A>::key_block;
  not_finite.clear();
  for (Index j = 0; j < count; ++j) {
    T const* const row = detail::finite_row<A>(from.row(first + j), from.dim_stride, dim, j, not_finite);
    Index d = 0;
    if (row && from.dim_stride == 1)
      for (; d + group <= dim; d += group)
        for (Index r = 0; r < group; ++r) to[d * block + j * group + r] = static_cast<A>(row[d + r]);
    for (; d < dim; d += group)
      for (Index r = 0; r < group; ++r)
        to[d * block + j * group + r] = row && d + r < dim ? static_cast<A>(row[(d + r) * from.dim_stride]) : A(0);
  }
}
/// The same as pairs of rows.
inline void pack_column_groups(HeadRows<Eigen::bfloat16 const> const& from, Index first, Index count, Index dim,
                               BfloatPair* to, RowSet& not_finite) {
  constexpr Index group = PackedGroup<BfloatPair>::rows, block = Blocking<float>::key_block / 2;
  not_finite.clear();
  auto const usable = [&](Index j) {
    return j < count ? detail::finite_row<float>(from.row(first + j), from.dim_stride, dim, j, not_finite) : nullptr;
  };
  if constexpr (PackedGroup<BfloatPair>::tiled) {
    Eigen::bfloat16 const* rows[Blocking<float>::key_block];
    for (Index j = 0; j < Blocking<float>::key_block; ++j) rows[j] = usable(j);
    detail::pack_column_tiles(rows, from.dim_stride, dim, to);
    return;
  }
  for (Index j = 0; j < count; j += 2) {
    Eigen::bfloat16 const *const upper = usable(j), *const lower = usable(j + 1);
    for (Index d = 0; d < dim; d += group)
      detail::pair_rows(upper, lower, d, from.dim_stride, std::min(group, dim - d), group,
                        to + d * block + j / 2 * group);
  }
}

/// Packs `count` rows into strips of as many rows (see for_each_strip). Padding columns and rows of null pointers are
/// zeros. Rows that hold NaN or infinity are packed as zeros and inserted into `not_finite`.
template <std::floating_point A, class T>
void pack_strips(T const* const* rows, Index dim_stride, Index count, Index dim, A* to, RowSet& not_finite) {
  constexpr Index lanes = Blocking<A>::lanes;
  not_finite.clear();
  for (Index i = 0; i < count; ++i) {
    T const* const row = rows[i] ? detail::finite_row<A>(rows[i], dim_stride, dim, i, not_finite) : nullptr;
    for_each_strip<A>(Blocking<A>::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      A* const place = to + begin * count + i * Width * lanes;
      Index const present = row ? std::min<Index>(dim - begin, Width * lanes) : 0;
      if (dim_stride == 1 && present == Width * lanes)
        for (Index d = 0; d < Width; ++d) load_widened<A>(row + begin + d * lanes).store(place + d * lanes);
      else if (dim_stride == 1)
        for (Index d = 0; d < present; ++d) place[d] = static_cast<A>(row[begin + d]);
      else
        for (Index d = 0; d < present; ++d) place[d] = static_cast<A>(row[(begin + d) * dim_stride]);
      for (Index d = present; d < Width * lanes; ++d) place[d] = A(0);
    });
  }
}
/// The same as pairs of rows, in strips of count / 2 rows of pairs.
inline void pack_strips(Eigen::bfloat16 const* const* rows, Index dim_stride, Index count, Index dim, BfloatPair* to,
                        RowSet& not_finite) {
  not_finite.clear();
  auto const usable = [&](Index i) {
    return i < count && rows[i] ? detail::finite_row<float>(rows[i], dim_stride, dim, i, not_finite) : nullptr;
  };
  for (Index i = 0; i < count; i += 2) {
    Eigen::bfloat16 const *const upper = usable(i), *const lower = usable(i + 1);
    for_each_strip<float>(
        Blocking<float>::dim_padded(dim), [&]<int Width>(Index d, std::integral_constant<int, Width>) {
          constexpr Index width = Width * Blocking<float>::lanes;
          detail::pair_rows(upper, lower, d, dim_stride, std::min(width, dim - d), width,
                            to + d * (count / 2) + i / 2 * width);
        });
  }
}

/// Adds `count` rows of strips (see for_each_strip) of `capacity` rows to rows of unit stride, `row_stride` apart.
template <class A>
void add_strips(A const* from, Index capacity, Index count, Index dim, A* rows, Index row_stride) {
  for (Index i = 0; i < count; ++i)
    for_each_strip<A>(Blocking<A>::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      constexpr Index width = Width * Blocking<A>::lanes;
      A const* const place = from + begin * capacity + i * width;
      A* const row = rows + i * row_stride + begin;
      if (begin + width <= dim)
        for (Index d = 0; d < width; ++d) row[d] += place[d];
      else
        for (Index d = 0; d < dim - begin; ++d) row[d] += place[d];
    });
}

/// Sets lane i of a panel [dim][panel] to rows[i] times scale[i], or to zeros if that row is null. Pairs, along dim, are
/// not scaled.
template <class E, class T>
void pack_panel(T const* const* rows, Index dim_stride, Index dim, typename Operand<E>::Sum const* scale, E* to) {
  using A = typename Operand<E>::Sum;
  constexpr Index panel = Blocking<A>::panel, lanes = Blocking<A>::lanes, pair = Operand<E>::depth;
  static constexpr T zeros[pair * lanes]{};
  Index k = 0;
  if (dim_stride == 1)
    for (; pair * (k + lanes) <= dim; k += lanes)
      for (Index first = 0; first < panel; first += lanes) {
        Vector<A> block[lanes];
        for (Index i = 0; i < lanes; ++i) {
          block[i] = detail::load_packed<E>(rows[first + i] ? rows[first + i] + pair * k : zeros);
          if constexpr (!is_pair<E>) block[i] = block[i] * Vector<A>::of(scale[first + i]);
        }
        interleave(block);
        for (Index d = 0; d < lanes; ++d) detail::store_packed(block[d], to + (k + d) * panel + first);
      }
  for (; k < PackedGroup<E>::elements(dim); ++k)
    for (Index i = 0; i < panel; ++i) {
      E& element = to[k * panel + i] = E{};
      if (!rows[i]) continue;
      element = detail::packed_element<E>(rows[i], dim_stride, dim, k);
      if constexpr (!is_pair<E>) element *= scale[i];
    }
}

/// Inverse of pack_panel: rows[i], of unit stride, becomes kept[i] * rows[i] plus lane i of the panel. If kept[i] is 0
/// the old row is not read. Null rows are skipped.
template <class A>
void unpack_panel(A const* panel_block, Index dim, A const* kept, A* const* rows) {
  constexpr Index panel = Blocking<A>::panel, lanes = Blocking<A>::lanes;
  Index begin = 0;
  for (; begin + lanes <= dim; begin += lanes)
    for (Index first = 0; first < panel; first += lanes) {
      Vector<A> block[lanes];
      for (Index d = 0; d < lanes; ++d) block[d] = Vector<A>::load(panel_block + (begin + d) * panel + first);
      interleave(block);
      for (Index i = 0; i < lanes; ++i) {
        if (!rows[first + i]) continue;
        A* const place = rows[first + i] + begin;
        A const factor = kept[first + i];
        if (factor != A(0)) block[i] = multiply_add(Vector<A>::load(place), Vector<A>::of(factor), block[i]);
        block[i].store(place);
      }
    }
  for (Index i = 0; i < panel; ++i)
    for (Index d = begin; rows[i] && d < dim; ++d) {
      A const lane = panel_block[d * panel + i];
      rows[i][d] = kept[i] == A(0) ? lane : rows[i][d] * kept[i] + lane;
    }
}

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
