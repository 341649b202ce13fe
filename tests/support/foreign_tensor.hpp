#pragma once
// Tensors in foreign memory, with upload and download.

#include <array>
#include <cstddef>

#include "annulus/tensor/tensor_like.hpp"
#include "annulus/tensor/view.hpp"
#include "support/foreign_space.hpp"

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

/// Foreign elements as host memory. Only for tests, and only after the backend has been synchronized.
template <class T, std::size_t N>
annulus::TensorView<T, N> at_rest(ForeignView<T, N> view) {
  require_foreign(view, "upload or download");
  return view.template in_space<annulus::HostMemory>();
}

/// A dense row-major tensor that owns foreign memory; its elements are initialised to NaN (or 0xFF bytes).
template <class T, std::size_t N>
class ForeignTensor {
 public:
  explicit ForeignTensor(std::array<annulus::Index, N> const& extents)
      : extents_(extents), memory_(static_cast<std::size_t>(ForeignView<T, N>(nullptr, extents).size()) * sizeof(T)) {}

  ForeignView<T, N> view() { return {reinterpret_cast<T*>(memory_.data()), extents_}; }
  ForeignView<T const, N> view() const { return {reinterpret_cast<T const*>(memory_.data()), extents_}; }

  void upload(annulus::TensorView<T const, N> from) { annulus::detail::copy_elements(from, at_rest(view())); }

 private:
  std::array<annulus::Index, N> extents_;
  ForeignAllocation memory_;
};

/// A Placement for run_rank.
struct ForeignPlacement {
  template <class T, std::size_t N>
  static ForeignTensor<T, N> place(annulus::TensorView<T const, N> shard) {
    ForeignTensor<T, N> tensor(shard.extents());
    tensor.upload(shard);
    return tensor;
  }
  template <class T, std::size_t N>
  static annulus::TensorView<T const, N> host(ForeignView<T const, N> view) {
    return at_rest(view);
  }
};

}  // namespace annulus_test

template <class T, std::size_t N>
struct annulus::TensorTraits<annulus_test::ForeignTensor<T, N>> {
  using Tensor = annulus_test::ForeignTensor<T, N>;
  using scalar = T;
  using memory_space = annulus_test::ForeignMemory;
  static constexpr std::size_t rank = N;

  static auto view(Tensor& tensor) { return tensor.view(); }
  static auto view(Tensor const& tensor) { return tensor.view(); }
  template <class U, std::size_t M>
  static annulus_test::ForeignTensor<U, M> make(std::array<Index, M> const& extents) {
    return annulus_test::ForeignTensor<U, M>(extents);
  }
};
