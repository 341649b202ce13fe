#pragma once
// Functions of the CUDA driver, found at run time, so that nothing links the driver.

#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail {

/// The driver's function of this name, as CUDA `version` (1000 * major + 10 * minor) declares it. Throws Error if the
/// driver has none.
template <class Function>
Function driver_function(char const* name, [[maybe_unused]] unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
#else
  check(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found), "cudaGetDriverEntryPoint");
#endif
  if (!function) throw Error(annulus::detail::message_of("the CUDA driver has no ", name, "; CUDA 12 is required"));
  return reinterpret_cast<Function>(function);
}

}  // namespace annulus::cuda::detail
