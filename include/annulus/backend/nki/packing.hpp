#pragma once
// Between the views of the library and the layouts of kernels, in which rows that take no part (no_row) are zeros.

#include <array>
#include <span>
#include <vector>

#include "annulus/backend/nki/lower/kernel_spec.hpp"
#include "annulus/backend/nki/step_rows.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::nki {

/// Which axis is last in a layout of [batch, heads, ., .].
enum class LastAxis { dim, rows };

namespace packing_detail {

/// function(place in the layout, batch, row of the view, head, element) for all rows that take part.
template <class Function>
void for_each_place(std::array<Index, 4> const& extents, std::span<Index const> rows, LastAxis last,
                    Function&& function) {
  Index const count = std::ssize(rows), dim = extents[axis::dim];
  for (Index b = 0; b < extents[axis::batch]; ++b)
    for (Index h = 0; h < extents[axis::heads]; ++h)
      for (Index i = 0; i < count; ++i)
        for (Index d = 0; rows[static_cast<std::size_t>(i)] != no_row && d < dim; ++d) {
          Index const head = b * extents[axis::heads] + h;
          Index const place = last == LastAxis::dim ? (head * count + i) * dim + d : (head * dim + d) * count + i;
          function(static_cast<std::size_t>(place), b, rows[static_cast<std::size_t>(i)], h, d);
        }
}

/// As above, for layouts [batch * heads, 128, columns]: row c * 128 + p is at (p, c).
template <class Function>
void for_each_column_place(std::array<Index, 3> const& extents, std::span<Index const> rows, Function&& function) {
  Index const count = std::ssize(rows), columns = ceil_divide(count, tile_rows);
  for (Index b = 0; b < extents[0]; ++b)
    for (Index h = 0; h < extents[1]; ++h)
      for (Index i = 0; i < count; ++i)
        if (rows[static_cast<std::size_t>(i)] != no_row)
          function(
              static_cast<std::size_t>(((b * extents[1] + h) * tile_rows + i % tile_rows) * columns + i / tile_rows), b,
              h, rows[static_cast<std::size_t>(i)]);
}

}  // namespace packing_detail

/// view [batch, rows, heads, dim]; each row times factor(batch, head, row), in T.
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

/// view [batch, rows, heads, dim].
template <class T>
std::vector<float> packed(TensorView<T const, 4> view, std::span<Index const> rows, LastAxis last) {
  return packed(view, rows, last, [](Index, Index, Index) { return 1.0f; });
}

template <class A>
void unpack(std::span<float const> values, std::span<Index const> rows, LastAxis last, TensorView<A, 4> view) {
  packing_detail::for_each_place(view.extents(), rows, last,
                                 [&](std::size_t place, Index b, Index row, Index h, Index d) {
                                   view(b, row, h, d) = static_cast<A>(values[place]);
                                 });
}

/// view [batch, heads, rows]; encode(element, batch, head, row) is what the kernel gets for it, `absent` what it gets
/// where no row is.
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

template <class A, class Decode>
void unpack_columns(std::span<float const> values, std::span<Index const> rows, TensorView<A, 3> view,
                    Decode&& decode) {
  packing_detail::for_each_column_place(view.extents(), rows, [&](std::size_t place, Index b, Index h, Index row) {
    view(b, h, row) = static_cast<A>(decode(values[place]));
  });
}

}  // namespace annulus::nki
