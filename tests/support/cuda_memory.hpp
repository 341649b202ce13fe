#pragma once
// Tensors that a GPU and the host read at the same address, in pinned memory, and a ring of GPU memory that stages what
// it sends over one of host memory.

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "annulus/comm/cuda_staging.hpp"
#include "annulus/comm/device_ring.hpp"
#include "annulus/core/cuda/memory.hpp"
#include "annulus/tensor/tensor_like.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus_test {

/// A dense row-major tensor; its elements are initialised to NaN (or 0xFF bytes).
template <class T, std::size_t N>
class CudaTensor {
 public:
  explicit CudaTensor(std::array<annulus::Index, N> const& extents)
      : extents_(extents),
        memory_(annulus::cuda::detail::allocate_pinned(annulus::TensorView<T, N>(nullptr, extents).size() *
                                                       annulus::Index{sizeof(T)})) {
    if (memory_.size() > 0) std::memset(memory_.data(), 0xFF, static_cast<std::size_t>(memory_.size()));
  }

  annulus::TensorView<T, N, annulus::CudaMemory> view() { return {data(), extents_}; }
  annulus::TensorView<T const, N, annulus::CudaMemory> view() const { return {data(), extents_}; }

  /// Copies from host memory.
  void upload(annulus::TensorView<T const, N> from) {
    annulus::detail::copy_elements(from, annulus::TensorView<T, N>(data(), extents_));
  }

 private:
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }

  std::array<annulus::Index, N> extents_;
  annulus::cuda::detail::PinnedBytes memory_;
};

/// A Placement for run_rank.
struct CudaPlacement {
  template <class T, std::size_t N>
  static CudaTensor<T, N> place(annulus::TensorView<T const, N> shard) {
    CudaTensor<T, N> tensor(shard.extents());
    tensor.upload(shard);
    return tensor;
  }
  template <class T, std::size_t N>
  static annulus::TensorView<T const, N> host(annulus::TensorView<T const, N, annulus::CudaMemory> view) {
    return view.template in_space<annulus::HostMemory>();
  }
};

struct OwnedCudaStaging {
  std::unique_ptr<annulus::CudaStaging> staging = std::make_unique<annulus::CudaStaging>();
};

/// A ring of GPU memory over one of host memory, which must outlive it.
template <annulus::Communicator Inner>
class StagedCudaRing : OwnedCudaStaging, public annulus::StagedRing<annulus::CudaMemory, Inner, annulus::CudaStaging> {
 public:
  explicit StagedCudaRing(Inner& inner)
      : annulus::StagedRing<annulus::CudaMemory, Inner, annulus::CudaStaging>(inner, *OwnedCudaStaging::staging) {}
};

}  // namespace annulus_test

template <class T, std::size_t N>
struct annulus::TensorTraits<annulus_test::CudaTensor<T, N>> {
  using Tensor = annulus_test::CudaTensor<T, N>;
  using scalar = T;
  using memory_space = annulus::CudaMemory;
  static constexpr std::size_t rank = N;

  static auto view(Tensor& tensor) { return tensor.view(); }
  static auto view(Tensor const& tensor) { return tensor.view(); }
  template <class U, std::size_t M>
  static annulus_test::CudaTensor<U, M> make(std::array<Index, M> const& extents) {
    return annulus_test::CudaTensor<U, M>(extents);
  }
};
