#pragma once
// Conversion between tensor views and kernel layouts. Rows marked inactive_row are zero in the kernel layout.

#include <array>
#include <span>
#include <vector>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/backend/nki/step_rows.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::nki {

/// Last axis of a layout: [batch, heads, rows, dim] or [batch, heads, dim, rows].
enum class LastAxis { dim, rows };

namespace packing_detail {

/// Calls function(offset in the layout, batch, row of the view, head, element of dim) for all rows except inactive_row.
template <class Function>
void for_each_place(std::array<Index, 4> const& extents, std::span<Index const> rows, LastAxis last,
                    Function&& function) {
  Index const count = std::ssize(rows), dim = extents[axis::dim];
  for (Index b = 0; b < extents[axis::batch]; ++b)
    for (Index h = 0; h < extents[axis::heads]; ++h)
      for (Index i = 0; i < count; ++i)
        for (Index d = 0; rows[static_cast<std::size_t>(i)] != inactive_row && d < dim; ++d) {
          Index const head = b * extents[axis::heads] + h;
          Index const place = last == LastAxis::dim ? (head * count + i) * dim + d : (head * dim + d) * count + i;
          function(static_cast<std::size_t>(place), b, rows[static_cast<std::size_t>(i)], h, d);
        }
}

/// Calls function(offset in the layout, batch, head, row of the view) for the layout [batch * heads, 128, columns] with
/// row c * 128 + p at (p, c), skipping inactive_row.
template <class Function>
void for_each_column_place(std::array<Index, 3> const& extents, std::span<Index const> rows, Function&& function) {
  Index const count = std::ssize(rows), columns = ceil_divide(count, tile_rows);
  for (Index b = 0; b < extents[0]; ++b)
    for (Index h = 0; h < extents[1]; ++h)
      for (Index i = 0; i < count; ++i)
        if (rows[static_cast<std::size_t>(i)] != inactive_row)
          function(
              static_cast<std::size_t>(((b * extents[1] + h) * tile_rows + i % tile_rows) * columns + i / tile_rows), b,
              h, rows[static_cast<std::size_t>(i)]);
}

}  // namespace packing_detail

/// Packs view [batch, rows, heads, dim] into [batch, heads, rows, dim] or [batch, heads, dim, rows]. Each row is times
/// factor(batch, head, row), rounded to T.
template <class T, class Factor>
std::vector<float> packed(TensorView<T const, 4> view, std::span<Index const> rows, LastAxis last, Factor&& factor) {
  auto const& extents = view.extents();
  std::vector<float> values(
      static_cast<std::size_t>(extents[axis::batch] * extents[axis::heads] * std::ssize(rows) * extents[axis::dim]));
  packing_detail::for_each_place(extents, rows, last, [&](std::size_t place, Index b, Index row, Index h, Index d) {
    values[place] = static_cast<float>(static_cast<T>(static_cast<float>(view(b, row, h, d)) * factor(b, h, row)));
  });
  return values;
}

/// Packs without a factor.
template <class T>
std::vector<float> packed(TensorView<T const, 4> view, std::span<Index const> rows, LastAxis last) {
  return packed(view, rows, last, [](Index, Index, Index) { return 1.0f; });
}

/// Inverse of packed(): writes the values to view [batch, rows, heads, dim]; rows not in `rows` are left as they are.
template <class A>
void unpack(std::span<float const> values, std::span<Index const> rows, LastAxis last, TensorView<A, 4> view) {
  packing_detail::for_each_place(view.extents(), rows, last,
                                 [&](std::size_t place, Index b, Index row, Index h, Index d) {
                                   view(b, row, h, d) = static_cast<A>(values[place]);
                                 });
}

/// Packs view [batch, heads, rows] into [batch * heads, 128, columns]; encode(element, batch, head, row) is the packed
/// value, `absent` fills places without a row.
template <class A, class Encode>
std::vector<float> packed_columns(TensorView<A const, 3> view, std::span<Index const> rows, float absent,
                                  Encode&& encode) {
  Index const columns = ceil_divide(std::ssize(rows), tile_rows);
  std::vector<float> values(static_cast<std::size_t>(view.extent(0) * view.extent(1) * tile_rows * columns), absent);
  packing_detail::for_each_column_place(view.extents(), rows, [&](std::size_t place, Index b, Index h, Index row) {
    values[place] = static_cast<float>(encode(view(b, h, row), b, h, row));
  });
  return values;
}

/// Inverse of packed_columns(): writes decode(value) to view [batch, heads, rows].
template <class A, class Decode>
void unpack_columns(std::span<float const> values, std::span<Index const> rows, TensorView<A, 3> view,
                    Decode&& decode) {
  packing_detail::for_each_column_place(view.extents(), rows, [&](std::size_t place, Index b, Index h, Index row) {
    view(b, h, row) = static_cast<A>(decode(values[place]));
  });
}

}  // namespace annulus::nki
