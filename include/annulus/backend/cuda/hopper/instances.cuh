#pragma once
// The instances of the kernels, each compiled by itself (compiled/shape.cu), and their choice at run time
// (compiled/dispatch.cu).

#include "annulus/backend/cuda/hopper/launch_fold.cuh"
#include "annulus/backend/cuda/hopper/launch_gradients.cuh"

namespace annulus::cuda::detail::hopper {

template <class T, HeadShape shape>
struct FoldInstance {
  static void launch(FoldArguments<T> const& arguments, Workspace const& workspace, cudaStream_t stream);
};
template <class T, HeadShape shape>
struct GradientInstance {
  static void launch(GradientArguments<T> const& arguments, Workspace const& workspace, cudaStream_t stream);
};

}  // namespace annulus::cuda::detail::hopper
