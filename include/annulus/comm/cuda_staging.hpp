#pragma once
// Staging of GPU memory in pinned host memory, for StagedRing over a communicator of host memory. Needs the CUDA
// toolkit; not part of the umbrella.

#include <algorithm>
#include <cstddef>
#include <span>

#include "annulus/comm/device_ring.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus {

/// Copies of a rank between its GPU, which is current when this is constructed, and pinned memory. Models Staging.
class CudaStaging {
 public:
  cuda::detail::PinnedBytes allocate(Index bytes) { return cuda::detail::allocate_pinned(std::max<Index>(bytes, 1)); }

  void to_host(std::span<std::byte const> from, std::span<std::byte> to) { copy(from, to); }
  void from_host(std::span<std::byte const> from, std::span<std::byte> to) { copy(from, to); }

 private:
  void copy(std::span<std::byte const> from, std::span<std::byte> to) {
    cuda::detail::check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, stream_),
                        "cudaMemcpyAsync");
    cuda::detail::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  cuda::detail::Stream stream_ = cuda::detail::make_stream();
};

static_assert(Staging<CudaStaging>);

}  // namespace annulus
