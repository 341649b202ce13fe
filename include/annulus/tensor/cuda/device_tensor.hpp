#pragma once
// DeviceTensor: a tensor in the memory of a GPU, copies to and from host tensors, and views of device pointers. Needs
// the CUDA toolkit; not part of the umbrella.

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "annulus/core/cuda/memory.hpp"
#include "annulus/tensor/eigen.hpp"
#include "annulus/tensor/host_copies.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

/// Owner of a dense, row-major tensor of N axes with elements of type T, in the memory of one GPU. Movable.
template <class T, std::size_t N = 4>
class DeviceTensor {
 public:
  using Extents = std::array<Index, N>;  ///< by axis

  DeviceTensor() = default;  ///< no elements
  /// On the current GPU; elements unspecified. Throws ShapeError for negative extents or too many bytes, Error if there
  /// is not so much memory.
  explicit DeviceTensor(Extents const& extents) : extents_(extents) {
    detail::require_countable("a tensor of a GPU", extents, sizeof(T));
    Index const bytes = size() * static_cast<Index>(sizeof(T));
    if (bytes > 0) memory_ = cuda::detail::allocate_device(bytes);
  }
  /// The same for one extent an axis.
  template <std::convertible_to<Index>... E>
  requires(sizeof...(E) == N) explicit DeviceTensor(E... extents)
      : DeviceTensor(Extents{static_cast<Index>(extents)...}) {}

  Extents const& extents() const { return extents_; }                        ///< by axis
  Index extent(std::size_t a) const { return extents_[a]; }                  ///< of one axis
  Index size() const { return view().size(); }                               ///< number of elements
  T* data() { return reinterpret_cast<T*>(memory_.data()); }                 ///< first element, a device pointer
  T const* data() const { return const_cast<DeviceTensor*>(this)->data(); }  ///< the same, read-only

  /// A view of all elements.
  TensorView<T, N, CudaMemory> view() { return {data(), extents_}; }
  /// A read-only view of all elements.
  TensorView<T const, N, CudaMemory> view() const { return {data(), extents_}; }

 private:
  Extents extents_{};
  cuda::detail::DeviceBytes memory_;
};

/// Traits of tensors on GPUs. New ones are on the current GPU.
template <class T, std::size_t N>
struct TensorTraits<DeviceTensor<T, N>> {
  using scalar = T;
  using memory_space = CudaMemory;
  static constexpr std::size_t rank = N;

  /// A view of all elements.
  static auto view(DeviceTensor<T, N>& x) { return x.view(); }
  /// A read-only view of all elements.
  static auto view(DeviceTensor<T, N> const& x) { return x.view(); }
  /// A new tensor on the current GPU.
  template <class U, std::size_t M>
  static auto make(std::array<Index, M> const& extents) {
    return DeviceTensor<U, M>(extents);
  }
};

/// Traits of views of memory of a GPU, such as dlpack_view returns. Results of calls on them are DeviceTensors.
template <class T, std::size_t N>
struct TensorTraits<TensorView<T, N, CudaMemory>> {
  using scalar = std::remove_const_t<T>;
  using memory_space = CudaMemory;
  static constexpr std::size_t rank = N;

  /// The view itself.
  static constexpr TensorView<T, N, CudaMemory> view(TensorView<T, N, CudaMemory> const& x) { return x; }
  /// A new tensor on the current GPU.
  template <class U, std::size_t M>
  static auto make(std::array<Index, M> const& extents) {
    return DeviceTensor<U, M>(extents);
  }
};

/// Copies a host tensor to a new tensor on the current GPU, and returns when the elements are there. The copy of a tensor
/// with another axis order, see bhsd(), is [batch, sequence, heads, dim].
template <TensorLike X>
requires std::same_as<SpaceOf<X>, HostMemory>
auto to_device(X const& host) {
  using T = ScalarOf<X>;
  constexpr std::size_t N = rank_of<X>;
  TensorView<T const, N> const from = view_of(host);
  DeviceTensor<T, N> copy(from.extents());
  std::size_t const bytes = static_cast<std::size_t>(from.size()) * sizeof(T);
  if (bytes == 0) return copy;
  detail::HostBuffer dense(static_cast<Index>(bytes));
  detail::copy_elements(from, TensorView<T, N>(reinterpret_cast<T*>(dense.data()), from.extents()));
  cuda::detail::check(cudaMemcpy(copy.data(), dense.data(), bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
  return copy;
}

/// Copies a tensor on a GPU to a host tensor of equal extents, and returns when the elements are there. Work that writes
/// them must be done, as that of a call of RingAttention is when it returns. Throws ShapeError for other extents.
template <class T, std::size_t N, TensorLike X>
requires std::same_as<SpaceOf<X>, HostMemory>
void to_host(DeviceTensor<T, N> const& from, X&& host) {
  TensorView<T, N> const to = view_of(host);
  detail::check<ShapeError>(to.extents() == from.extents(), "a host tensor of extents ", to.extents(),
                            " receives a tensor of a GPU; accepted: ", from.extents());
  std::size_t const bytes = static_cast<std::size_t>(from.size()) * sizeof(T);
  if (bytes == 0) return;
  detail::HostBuffer dense(static_cast<Index>(bytes));
  cuda::detail::check(cudaMemcpy(dense.data(), from.data(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  detail::copy_elements(TensorView<T const, N>(reinterpret_cast<T const*>(dense.data()), from.extents()), to);
}

/// The same to a new row-major Eigen::Tensor.
template <class T, std::size_t N>
auto to_host(DeviceTensor<T, N> const& from) {
  auto host = detail::eigen_tensor<T, N, Eigen::RowMajor>(from.extents());
  to_host(from, host);
  return host;
}

/// scatter and gather on rings of GPUs copy by to_device and to_host.
template <>
struct HostCopies<CudaMemory> {
  /// A new tensor on the current GPU.
  template <TensorLike X>
  static auto to_space(X const& host) {
    return to_device(host);
  }
  /// A new Eigen tensor.
  template <class T, std::size_t N>
  static auto to_host(DeviceTensor<T, N> const& from) {
    return annulus::to_host(from);
  }
  /// To a view of host memory.
  template <class T, std::size_t N>
  static void to_host(DeviceTensor<T, N> const& from, TensorView<T, N> to) {
    annulus::to_host(from, to);
  }

  /// A stream of the current GPU.
  struct OwnedQueue {
    cuda::detail::Stream stream = cuda::detail::make_stream();  ///< owned
    CudaMemory::Queue queue{stream};                            ///< the stream
  };
};

}  // namespace annulus
