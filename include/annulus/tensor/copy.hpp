#pragma once
// Element-wise traversal of strided views in host memory.

#include <cstddef>

#include "annulus/tensor/view.hpp"

namespace annulus {

namespace detail {

template <std::size_t Axis, class T, class U, std::size_t N, class Function>
void visit_axis(TensorView<T, N> const& first, T* a, TensorView<U, N> const& second, U* b, Function& function) {
  if constexpr (Axis + 1 == N) {
    // In this branch the strides are known to be 1, so that the compiler can vectorise.
    if (first.stride(Axis) == 1 && second.stride(Axis) == 1) {
      for (Index i = 0; i < first.extent(Axis); ++i) function(a[i], b[i]);
      return;
    }
  }
  for (Index i = 0; i < first.extent(Axis); ++i) {
    T* const element = a + i * first.stride(Axis);
    U* const other = b + i * second.stride(Axis);
    if constexpr (Axis + 1 == N)
      function(*element, *other);
    else
      visit_axis<Axis + 1>(first, element, second, other, function);
  }
}

}  // namespace detail

/// Calls function(element of first, element of second) for each index. `second` must have the extents of `first`.
template <class T, class U, std::size_t N, class Function>
void for_each_element(TensorView<T, N> first, TensorView<U, N> second, Function&& function) {
  if (first.size() > 0) detail::visit_axis<0>(first, first.data(), second, second.data(), function);
}

/// Copies `from` to `to`, converting each element. The views must have equal extents.
template <class T, class U, std::size_t N>
void copy_elements(TensorView<T const, N> from, TensorView<U, N> to) {
  for_each_element(to, from, [](U& target, T const& source) { target = static_cast<U>(source); });
}

}  // namespace annulus
