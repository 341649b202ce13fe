#pragma once
// Tensors in foreign memory.

#include <cstddef>

#include "annulus/tensor/view.hpp"
#include "support/foreign_space.hpp"
#include "support/space_tensor.hpp"

namespace annulus_test {

template <class T, std::size_t N>
using ForeignView = annulus::TensorView<T, N, ForeignMemory>;

/// Throws HostMemoryRefused unless all elements lie inside one foreign allocation. Views without elements are accepted.
template <class T, std::size_t N>
void require_foreign(ForeignView<T, N> view, char const* use) {
  if (view.size() == 0) return;
  annulus::Index low = 0, high = 1;
  for (std::size_t a = 0; a < N; ++a) {
    annulus::Index const reach = view.stride(a) * (view.extent(a) - 1);
    (reach < 0 ? low : high) += reach;
  }
  // Compared as byte offsets from the first element, because a null pointer must not be moved.
  auto const* const first = reinterpret_cast<std::byte const*>(view.data());
  auto const& registry = ForeignRegistry::instance();
  registry.require(first, sizeof(T), use);
  registry.require(first + low * annulus::Index{sizeof(T)}, static_cast<std::size_t>(high - low) * sizeof(T), use);
}

/// Foreign memory as a place of tensors.
struct ForeignPlace {
  using memory_space = ForeignMemory;
  using Bytes = ForeignAllocation;

  template <class T, std::size_t N>
  static void require(ForeignView<T, N> view, char const* use) {
    require_foreign(view, use);
  }
};

template <class T, std::size_t N>
using ForeignTensor = SpaceTensor<T, N, ForeignPlace>;
using ForeignPlacement = SpacePlacement<ForeignPlace>;

/// Foreign elements as host memory; see at_rest_in.
template <class T, std::size_t N>
annulus::TensorView<T, N> at_rest(ForeignView<T, N> view) {
  return at_rest_in<ForeignPlace>(view);
}

}  // namespace annulus_test
