// In place of the Hopper kernels, for builds without their architecture: no step is fast.

#include "annulus/backend/cuda/hopper/hopper.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail::hopper {

bool is_hopper() { return false; }

template <class T>
void fold(FoldArguments<T> const&, Workspace const&, cudaStream_t) {
  throw Error("annulus::cuda was compiled without the Hopper kernels");
}
template <class T>
void add_gradients(GradientArguments<T> const&, Workspace const&, cudaStream_t) {
  throw Error("annulus::cuda was compiled without the Hopper kernels");
}

template void fold(FoldArguments<__nv_bfloat16> const&, Workspace const&, cudaStream_t);
template void fold(FoldArguments<__half> const&, Workspace const&, cudaStream_t);
template void add_gradients(GradientArguments<__nv_bfloat16> const&, Workspace const&, cudaStream_t);
template void add_gradients(GradientArguments<__half> const&, Workspace const&, cudaStream_t);

}  // namespace annulus::cuda::detail::hopper
