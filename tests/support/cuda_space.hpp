#pragma once
// CudaMemory in the suites: bytes that host and GPUs access, queues, and work on a queue that is a function of the
// host. For CUDA's runtime and for the one of support/cuda_on_threads.

#include <annulus/core/cuda/memory.hpp>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "conformance/communicator_ranks.hpp"

namespace annulus_test {

using CudaQueue = annulus::CudaMemory::Queue;

/// Number of GPUs of this process; says so if there is none.
inline int number_of_gpus() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  std::puts("skipped: there is no GPU");
  return 0;
}

/// A GPU for each rank: `ranks_a_gpu` consecutive ranks have the same one, and so have more where GPUs are few.
inline std::vector<int> gpus_of(int ranks, int ranks_a_gpu) {
  int const count = number_of_gpus();
  std::vector<int> gpus;
  for (int rank = 0; rank < ranks; ++rank) gpus.push_back(rank / ranks_a_gpu % count);
  return gpus;
}

/// Memory that host and GPUs access, initialised to 0xFF (as floating-point numbers: NaN).
class ManagedBytes {
 public:
  ManagedBytes() = default;
  explicit ManagedBytes(std::size_t size) : size_(size) {
    void* data = nullptr;
    annulus::cuda::detail::check(cudaMallocManaged(&data, size + 1, cudaMemAttachGlobal), "cudaMallocManaged");
    data_ = Memory(data);
    std::memset(data, 0xFF, size);
  }

  std::byte* data() const { return static_cast<std::byte*>(static_cast<void*>(data_)); }
  annulus::Index size() const { return static_cast<annulus::Index>(size_); }
  std::span<std::byte> bytes() const { return {data(), size_}; }

 private:
  using Memory = annulus::cuda::detail::Owned<void*, &cudaFree>;
  Memory data_;
  std::size_t size_ = 0;
};

template <>
class SpaceBytes<annulus::CudaMemory> : public ManagedBytes {
 public:
  using ManagedBytes::ManagedBytes;
};

template <>
struct SpaceQueue<annulus::CudaMemory> {
  annulus::cuda::detail::Stream stream = annulus::cuda::detail::make_stream();
  CudaQueue queue{stream};
};

/// Puts work on a queue that the host does. It must not throw, and calls nothing of CUDA.
inline void put(CudaQueue const& queue, std::function<void()> work) {
  auto const carry_out = [](void* argument) {
    std::unique_ptr<std::function<void()>> const owned(static_cast<std::function<void()>*>(argument));
    (*owned)();
  };
  auto owned = std::make_unique<std::function<void()>>(std::move(work));
  annulus::cuda::detail::check(cudaLaunchHostFunc(queue.stream, carry_out, owned.get()), "cudaLaunchHostFunc");
  static_cast<void>(owned.release());
}

}  // namespace annulus_test
