#pragma once
// Packing of operands with any strides into the blocks that the products read, and unpacking of results.

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "annulus/backend/cpu/packed_group.hpp"
#include "annulus/backend/cpu/products.hpp"
#include "annulus/backend/cpu/simd/interleave.hpp"
#include "annulus/tensor/view.hpp"

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

/// Packs `count` > 0 rows from `first` into groups (PackedGroup). The last group is padded with copies of its last row,
/// so that a maximum over the group equals that over its rows.
template <std::floating_point A, class T>
void pack_row_groups(HeadRows<T const> const& from, Index first, Index count, Index dim, A* to) {
  constexpr Index group = PackedGroup<A>::rows, lanes = Blocking<A>::lanes;
  for (Index begin = 0; begin < count; begin += group) {
    T const* rows[group];
    for (Index r = 0; r < group; ++r) rows[r] = from.row(first + std::min(begin + r, count - 1));
    Index d = 0;
    if (from.dim_stride == 1)
      for (; d + lanes <= dim; d += lanes, to += group * lanes) {
        Vector<A> block[group];
        for (Index r = 0; r < group; ++r) block[r] = load_widened<A>(rows[r] + d);
        interleave(block);
        for (Index r = 0; r < group; ++r) block[r].store(to + r * lanes);
      }
    for (; d < dim; ++d, to += group)
      for (Index r = 0; r < group; ++r) to[r] = static_cast<A>(rows[r][d * from.dim_stride]);
  }
}

/// Packs `count` rows from `first`, transposed, into groups: row d of the groups holds element d of all rows, key_block
/// deep, padded with zeros. Rows that hold NaN or infinity are packed as zeros and inserted into `not_finite`.
template <std::floating_point A, class T>
void pack_column_groups(HeadRows<T const> const& from, Index first, Index count, Index dim, A* to, RowSet& not_finite) {
  constexpr Index group = PackedGroup<A>::rows, block = Blocking<A>::key_block;
  not_finite.clear();
  for (Index j = 0; j < count; ++j) {
    T const* const row = from.row(first + j);
    bool const finite = all_finite<A>(row, from.dim_stride, dim);
    if (!finite) not_finite.insert(j);
    Index d = 0;
    if (finite && from.dim_stride == 1)
      for (; d + group <= dim; d += group)
        for (Index r = 0; r < group; ++r) to[d * block + j * group + r] = static_cast<A>(row[d + r]);
    for (; d < dim; d += group)
      for (Index r = 0; r < group; ++r)
        to[d * block + j * group + r] = finite && d + r < dim ? static_cast<A>(row[(d + r) * from.dim_stride]) : A(0);
  }
}

/// Packs rows into strips of `capacity` rows (see for_each_strip). Padding columns and rows of null pointers are zeros.
/// With `not_finite`, rows that hold NaN or infinity are packed as zeros and inserted there.
template <std::floating_point A, class T>
void pack_strips(T const* const* rows, Index dim_stride, Index count, Index dim, A* to, Index capacity,
                 RowSet* not_finite = nullptr) {
  constexpr Index lanes = Blocking<A>::lanes;
  if (not_finite) not_finite->clear();
  for (Index i = 0; i < count; ++i) {
    T const* row = rows[i];
    if (not_finite && row && !all_finite<A>(row, dim_stride, dim)) {
      not_finite->insert(i);
      row = nullptr;
    }
    for_each_strip<A>(Blocking<A>::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      A* const place = to + begin * capacity + i * Width * lanes;
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

/// Calls function(element of row_of(i), element of the strips) for all elements of rows that are not null; rows have
/// unit stride.
template <class A, class RowOf, class Function>
void unpack_strips(A const* from, Index capacity, Index count, Index dim, RowOf&& row_of, Function&& function) {
  for (Index i = 0; i < count; ++i) {
    A* const row = row_of(i);
    if (!row) continue;
    for_each_strip<A>(Blocking<A>::dim_padded(dim), [&]<int Width>(Index begin, std::integral_constant<int, Width>) {
      constexpr Index width = Width * Blocking<A>::lanes;
      A const* const place = from + begin * capacity + i * width;
      if (begin + width <= dim)
        for (Index d = 0; d < width; ++d) function(row[begin + d], place[d]);
      else
        for (Index d = 0; d < dim - begin; ++d) function(row[begin + d], place[d]);
    });
  }
}

/// Sets lane i of a panel [dim][panel] to rows[i] times scale[i], or to zeros if that row is null.
template <std::floating_point A, class T>
void pack_panel(T const* const* rows, Index dim_stride, Index dim, A const* scale, A* to) {
  constexpr Index panel = Blocking<A>::panel, lanes = Blocking<A>::lanes;
  static constexpr T zeros[lanes]{};
  Index begin = 0;
  if (dim_stride == 1)
    for (; begin + lanes <= dim; begin += lanes)
      for (Index first = 0; first < panel; first += lanes) {
        Vector<A> block[lanes];
        for (Index i = 0; i < lanes; ++i)
          block[i] =
              load_widened<A>(rows[first + i] ? rows[first + i] + begin : zeros) * Vector<A>::of(scale[first + i]);
        interleave(block);
        for (Index d = 0; d < lanes; ++d) block[d].store(to + (begin + d) * panel + first);
      }
  for (Index d = begin; d < dim; ++d)
    for (Index i = 0; i < panel; ++i)
      to[d * panel + i] = rows[i] ? scale[i] * static_cast<A>(rows[i][d * dim_stride]) : A(0);
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
