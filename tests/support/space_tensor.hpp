#pragma once
// Tensors in the memory of a device that tests emulate, with upload and download.

#include <array>
#include <cstddef>

#include "annulus/tensor/tensor_like.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus_test {

/// Elements as host memory. Only for tests, and only after the backend has been synchronized. `Place` is a memory of
/// which host code can read every byte: it has memory_space, Bytes (a movable block with data(), constructed from a
/// size) and require(view, use), which throws if the elements do not lie in it.
template <class Place, class T, std::size_t N>
annulus::TensorView<T, N> at_rest_in(annulus::TensorView<T, N, typename Place::memory_space> view) {
  Place::require(view, "upload or download");
  return view.template in_space<annulus::HostMemory>();
}

/// A dense row-major tensor that owns its memory; its elements are initialised to NaN (or 0xFF bytes).
template <class T, std::size_t N, class Place>
class SpaceTensor {
  template <class U>
  using View = annulus::TensorView<U, N, typename Place::memory_space>;

 public:
  explicit SpaceTensor(std::array<annulus::Index, N> const& extents)
      : extents_(extents), memory_(static_cast<std::size_t>(View<T>(nullptr, extents).size()) * sizeof(T)) {}

  View<T> view() { return {reinterpret_cast<T*>(memory_.data()), extents_}; }
  View<T const> view() const { return {reinterpret_cast<T const*>(memory_.data()), extents_}; }

  void upload(annulus::TensorView<T const, N> from) { annulus::detail::copy_elements(from, at_rest_in<Place>(view())); }

 private:
  std::array<annulus::Index, N> extents_;
  typename Place::Bytes memory_;
};

/// A Placement for run_rank.
template <class Place>
struct SpacePlacement {
  template <class T, std::size_t N>
  static SpaceTensor<T, N, Place> place(annulus::TensorView<T const, N> shard) {
    SpaceTensor<T, N, Place> tensor(shard.extents());
    tensor.upload(shard);
    return tensor;
  }
  template <class T, std::size_t N>
  static annulus::TensorView<T const, N> host(annulus::TensorView<T const, N, typename Place::memory_space> view) {
    return at_rest_in<Place>(view);
  }
};

}  // namespace annulus_test

template <class T, std::size_t N, class Place>
struct annulus::TensorTraits<annulus_test::SpaceTensor<T, N, Place>> {
  using Tensor = annulus_test::SpaceTensor<T, N, Place>;
  using scalar = T;
  using memory_space = typename Place::memory_space;
  static constexpr std::size_t rank = N;

  static auto view(Tensor& tensor) { return tensor.view(); }
  static auto view(Tensor const& tensor) { return tensor.view(); }
  template <class U, std::size_t M>
  static annulus_test::SpaceTensor<U, M, Place> make(std::array<Index, M> const& extents) {
    return annulus_test::SpaceTensor<U, M, Place>(extents);
  }
};
