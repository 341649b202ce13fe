// Kernels of one element type and shape. The build defines ANNULUS_HOPPER_ELEMENT (__nv_bfloat16 or __half),
// ANNULUS_HOPPER_HEAD_DIM and ANNULUS_HOPPER_VALUE_DIM, and compiles for sm_90a.

#include "annulus/backend/cuda/hopper/instances.cuh"

namespace annulus::cuda::detail::hopper {

using Element = ANNULUS_HOPPER_ELEMENT;
inline constexpr HeadShape shape{ANNULUS_HOPPER_HEAD_DIM, ANNULUS_HOPPER_VALUE_DIM};

template <>
void FoldInstance<Element, shape>::launch(FoldArguments<Element> const& a, Workspace const& workspace,
                                          cudaStream_t stream) {
  using Choice = FoldChoice<shape.head_dim, shape.value_dim, fold_tile(shape.head_dim, shape.value_dim)>;
  launch_fold<Choice>(a, workspace, stream);
}

#if ANNULUS_HOPPER_HEAD_DIM <= 128
template <>
void GradientInstance<Element, shape>::launch(GradientArguments<Element> const& a, Workspace const& workspace,
                                              cudaStream_t stream) {
  using Choice = GradientChoice<shape.head_dim, shape.value_dim, gradient_stages(shape.head_dim, shape.value_dim)>;
  launch_gradients<Choice>(a, workspace, {}, stream);
}
#endif

}  // namespace annulus::cuda::detail::hopper
