#pragma once
// Dynamic shared memory.

namespace annulus::cuda::detail {

/// Dynamic shared memory of a block, aligned to 16 bytes.
__device__ inline void* shared_memory() {
  extern __shared__ uint4 annulus_shared_memory[];
  return annulus_shared_memory;
}

}  // namespace annulus::cuda::detail
