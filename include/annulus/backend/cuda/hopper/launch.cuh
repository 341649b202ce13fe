#pragma once
// What launches of both passes share: limits of a GPU, shared memory of a kernel, and the coverage as kernels read it.

#include <algorithm>
#include <array>
#include <mutex>

#include "annulus/backend/cuda/hopper/hopper.hpp"
#include "annulus/backend/cuda/hopper/tensor_map.hpp"
#include "annulus/backend/cuda/hopper/visible_blocks.cuh"
#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail::hopper {

/// GPUs of a process whose attributes are kept.
inline constexpr int most_gpus = 64;

inline int current_gpu() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  if (device >= most_gpus)
    throw Error(annulus::detail::message_of("GPU ", device, "; at most ", most_gpus, " are used"));
  return device;
}

struct GpuLimits {
  int multiprocessors = 0, l2_bytes = 0, compute_capability = 0;  ///< 10 * major + minor
};

inline int attribute_of(int device, cudaDeviceAttr attribute) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

/// Of the current GPU. Asked once; may be called by any thread.
inline GpuLimits const& gpu_limits() {
  static std::array<GpuLimits, most_gpus> limits;
  static std::array<std::once_flag, most_gpus> asked;
  int const device = current_gpu();
  GpuLimits& found = limits[static_cast<std::size_t>(device)];
  std::call_once(asked[static_cast<std::size_t>(device)], [&] {
    found = {attribute_of(device, cudaDevAttrMultiProcessorCount), attribute_of(device, cudaDevAttrL2CacheSize),
             10 * attribute_of(device, cudaDevAttrComputeCapabilityMajor) +
                 attribute_of(device, cudaDevAttrComputeCapabilityMinor)};
  });
  return found;
}

/// More than 48 KB of shared memory is granted to a kernel on each GPU by itself. Called before each launch; asks once.
template <auto Kernel>
void grant_shared_memory(int bytes) {
  static std::array<std::once_flag, most_gpus> granted;
  std::call_once(granted[static_cast<std::size_t>(current_gpu())], [=] {
    check(cudaFuncSetAttribute(Kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
  });
}

/// Launches a kernel of one block per multiprocessor, at most one per tile. Its blocks may begin as those of the kernel
/// before end, and call await_earlier_kernel() before they read memory.
template <auto Kernel, class Choice, class Parameters>
void launch_persistent(Parameters const& parameters, int tiles, cudaStream_t stream) {
  grant_shared_memory<Kernel>(Choice::shared_bytes);
  cudaLaunchAttribute begins_early{};
  begins_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  begins_early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min(tiles, gpu_limits().multiprocessors));
  config.blockDim = Choice::threads;
  config.dynamicSmemBytes = Choice::shared_bytes;
  config.stream = stream;
  config.attrs = &begins_early;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, Kernel, parameters), "cudaLaunchKernelEx");
}

/// The coverage as kernels read it, without the bounds that find_bounds() fills in.
inline VisibleRows visible_rows(VisibleKeys const& visible, StepExtents const& e) {
  constexpr int far = 1 << 30;
  VisibleRows rows{};
  rows.queries = e.queries;
  rows.keys = e.keys;
  rows.low = -far;
  rows.high = far;
  if (visible.coverage == Coverage::band) {
    rows.low = std::clamp(visible.low, -far, far);
    rows.high = std::clamp(visible.high, -far, far);
    if (rows.high < rows.low) rows.low = rows.high = far;  // nothing is visible
  }
  if (visible.coverage == Coverage::ranges) rows.ranges = visible.ranges;
  rows.ranges_batch = visible.ranges_batch;
  rows.exact = visible.exact;
  rows.query_blocks = (e.queries + bounded_rows - 1) / bounded_rows;
  rows.key_blocks = (e.keys + gradient_keys - 1) / gradient_keys;
  return rows;
}

/// For ranges: finds, on the stream, which blocks see each other, in memory of the workspace. `for_keys`: also the
/// blocks of queries of each block of keys.
void find_bounds(VisibleRows& visible, int batch, bool for_keys, int4* workspace, cudaStream_t stream);

}  // namespace annulus::cuda::detail::hopper
