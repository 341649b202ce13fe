#pragma once
// Element-wise visits of strided views in host memory.

#include <array>

#include "annulus/tensor/view.hpp"

namespace annulus {

/// Calls function(first_element, other_element) for each index; both views have the extents of `first`.
template <class T, class U, std::size_t N, class Function>
void for_each_element(TensorView<T, N> first, TensorView<U, N> second, Function&& function) {
  if (first.size() == 0) return;
  std::array<Index, N> index{};
  T* a = first.data();
  U* b = second.data();
  constexpr std::size_t last = N - 1;
  for (;;) {
    for (Index i = 0; i < first.extent(last); ++i) function(a[i * first.stride(last)], b[i * second.stride(last)]);
    std::size_t axis = last;
    while (axis-- > 0) {
      a += first.stride(axis);
      b += second.stride(axis);
      if (++index[axis] < first.extent(axis)) break;
      a -= first.extent(axis) * first.stride(axis);
      b -= first.extent(axis) * second.stride(axis);
      index[axis] = 0;
    }
    if (axis == static_cast<std::size_t>(-1)) return;
  }
}

/// to = from, converted element by element. The views have equal extents.
template <class T, class U, std::size_t N>
void copy_elements(TensorView<T const, N> from, TensorView<U, N> to) {
  for_each_element(to, from, [](U& target, T const& source) { target = static_cast<U>(source); });
}

}  // namespace annulus
