#pragma once
// What is done of the work of a GPU, without a wait. Needs the CUDA toolkit; not part of the umbrella.

#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail {

/// True if the work before the event's last record is done. Throws Error if it failed.
inline bool is_reached(cudaEvent_t event) {
  cudaError_t const state = cudaEventQuery(event);
  if (state == cudaErrorNotReady)
    cudaGetLastError();  // it is no error
  else
    check(state, "cudaEventQuery");
  return state == cudaSuccess;
}
/// True unless that work is still to be done. Work that failed will not be done.
inline bool is_over(cudaEvent_t event) noexcept {
  cudaError_t const state = cudaEventQuery(event);
  if (state != cudaSuccess) cudaGetLastError();
  return state != cudaErrorNotReady;
}
/// The same for all work on a stream.
inline bool is_idle(cudaStream_t stream) noexcept {
  cudaError_t const state = cudaStreamQuery(stream);
  if (state != cudaSuccess) cudaGetLastError();
  return state != cudaErrorNotReady;
}

}  // namespace annulus::cuda::detail
