#pragma once
// Operands of the backward pass that are not finite. A product multiplies every element of a block, that of a hidden
// pair by 0, and 0 times infinity is NaN: so in steps that hide pairs such elements become 0. Rows that see one have an
// lse or a delta that is not finite, and by it their gradients.

#include "annulus/backend/cuda/elements.cuh"
#include "annulus/backend/cuda/hopper/pipeline.cuh"

namespace annulus::cuda::detail::hopper {

/// Replaces elements that are not finite by 0 in lines of 128 bytes of shared memory, of a row each. A warp. Sets
/// poisoned[line % 64] to NaN for each line that had one; null: no array.
template <class T>
__device__ __forceinline__ void clear_not_finite(unsigned char* lines, int count, float* poisoned) {
#pragma unroll 2
  for (int chunk = lane_now(); chunk < count * 8; chunk += 32) {
    auto* const at = reinterpret_cast<uint4*>(lines) + chunk;
    uint4 const x = *at;
    uint4 const bad{not_finite<T>(x.x), not_finite<T>(x.y), not_finite<T>(x.z), not_finite<T>(x.w)};
    if ((bad.x | bad.y | bad.z | bad.w) == 0) [[likely]]
      continue;
    *at = uint4{x.x & ~bad.x, x.y & ~bad.y, x.z & ~bad.z, x.w & ~bad.w};
    if (poisoned != nullptr) poisoned[chunk / 8 % bounded_rows] = __int_as_float(0x7FC00000);
  }
}

}  // namespace annulus::cuda::detail::hopper
