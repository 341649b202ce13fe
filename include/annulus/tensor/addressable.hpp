#pragma once
// Overflow checks of tensors: products and sums of extents, strides and element sizes must fit into an Index.

#include <array>
#include <cstddef>
#include <string_view>

#include "annulus/core/check.hpp"
#include "annulus/core/index.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// Throws ShapeError if a dense tensor with these extents has more bytes than an Index holds. Extents of 0 count as 1,
/// because buffers of one pass combine the extents of several tensors.
template <std::size_t N>
void require_countable(std::string_view name, std::array<Index, N> const& extents, std::size_t element_bytes) {
  auto bytes = static_cast<Index>(element_bytes);
  for (Index extent : extents)
    if (extent > 0) bytes = saturating_product(bytes, extent);
  check<ShapeError>(bytes < largest_index, name, " has extents ", extents, " of ", element_bytes,
                    " bytes an element; accepted: fewer than ", largest_index, " bytes in all");
}

/// Throws ShapeError if an extent is negative, if the size in bytes or the byte offset of an element overflows an
/// Index, or if the view has elements but a null data pointer.
template <class T, std::size_t N, class Space>
void require_addressable(std::string_view name, TensorView<T, N, Space> const& view) {
  for (Index extent : view.extents())
    check<ShapeError>(extent >= 0, name, " has extents ", view.extents(), "; extents must not be negative");
  require_countable(name, view.extents(), sizeof(T));
  if (view.size() == 0) return;
  check<ShapeError>(view.data() != nullptr, name, " of extents ", view.extents(), " has no data");
  Index reach = sizeof(T);
  for (std::size_t a = 0; a < N; ++a) {
    Index const step = view.stride(a) < 0 ? saturating_product(view.stride(a), -1) : view.stride(a);
    reach = saturating_sum(reach, saturating_product(saturating_product(view.extent(a) - 1, step), Index{sizeof(T)}));
  }
  check<ShapeError>(reach < largest_index, name, " of extents ", view.extents(), " has strides ", view.strides(),
                    " of ", sizeof(T), " bytes; accepted: elements within ", largest_index, " bytes");
}

}  // namespace annulus
