#pragma once
// CUDA C++ on host threads: each thread of a block is a fiber, which runs until it waits for others. Blocks run one after
// another. Kernels are compiled as ordinary functions.

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstddef>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline

namespace emulated_cuda {

/// Runs kernel() for every thread of every block.
void run_grid(dim3 blocks, dim3 threads, std::function<void()> const& kernel);
/// Waits for the other threads of the block, or of the warp.
void meet_block();
void meet_warp();
/// The next exchange of the running thread's warp: most_exchanged bytes for each lane. Two exchanges have memory of their
/// own, as some lanes begin the second while others read the first.
constexpr std::size_t most_exchanged = 64;
struct WarpExchange {
  unsigned char (*bytes)[most_exchanged];
  unsigned lane;  ///< of the running thread
};
WarpExchange next_exchange();
unsigned lane_of_thread();

/// The value of another lane, after all lanes have given theirs.
template <class T>
T from_lane(T value, unsigned lane) {
  static_assert(sizeof(T) <= most_exchanged);
  WarpExchange const exchange = next_exchange();
  std::memcpy(exchange.bytes[exchange.lane], &value, sizeof value);
  meet_warp();
  std::memcpy(&value, exchange.bytes[lane], sizeof value);
  return value;
}

}  // namespace emulated_cuda

/// Of the thread that runs.
extern uint3 threadIdx, blockIdx;
extern dim3 gridDim;

inline void __syncthreads() { emulated_cuda::meet_block(); }
inline void __syncwarp(unsigned = 0xffffffffu) { emulated_cuda::meet_warp(); }
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulated_cuda::from_lane(value, emulated_cuda::lane_of_thread() ^ static_cast<unsigned>(mask));
}

inline int __all_sync(unsigned, int value) {
  for (int distance = 16; distance > 0; distance /= 2) value &= __shfl_xor_sync(0, value, distance);
  return value;
}
inline unsigned long long atomicOr(unsigned long long* word, unsigned long long bits) {
  return std::exchange(*word, *word | bits);
}

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
};
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(cudaLaunchConfig_t const* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  auto const call = [kernel, parameters = std::tuple<std::decay_t<Parameters>...>(arguments...)] {
    std::apply([kernel](auto const&... each) { kernel(each...); }, parameters);
  };
  emulated_cuda::Gpu::instance().put(config->stream, [blocks = config->gridDim, threads = config->blockDim, call] {
    emulated_cuda::run_grid(blocks, threads, call);
  });
  return cudaSuccess;
}

using std::isfinite;
inline float fmax(float a, float b) { return std::fmax(a, b); }
