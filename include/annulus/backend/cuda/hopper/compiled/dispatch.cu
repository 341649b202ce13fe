// Choice of a kernel by the shape of a step, and the kernels that all shapes share.

#include <utility>

#include "annulus/backend/cuda/hopper/find_bounds.cuh"
#include "annulus/backend/cuda/hopper/instances.cuh"

namespace annulus::cuda::detail::hopper {

bool is_hopper() { return gpu_limits().compute_capability == 90; }

void find_bounds(VisibleRows& visible, int batch, bool for_keys, int4* workspace, cudaStream_t stream) {
  if (visible.ranges == nullptr) return;
  int const items = visible.ranges_batch == 0 ? 1 : batch;
  visible.bounds = workspace;
  if (int const count = items * visible.query_blocks; count > 0) {
    find_key_bounds<<<(count + 3) / 4, 128, 0, stream>>>(visible, workspace, count);
    check(cudaGetLastError(), "launch of a kernel");
  }
  int const count = items * visible.key_blocks;
  if (!for_keys || count == 0) return;
  int4* const blocks = workspace + static_cast<long long>(items) * visible.query_blocks;
  visible.blocks = blocks;
  find_query_blocks<<<(count + 3) / 4, 128, 0, stream>>>(visible, blocks, count);
  check(cudaGetLastError(), "launch of a kernel");
}

namespace {

[[noreturn]] void refuse(StepExtents const& e) {
  throw Error(annulus::detail::message_of("no Hopper kernel has head_dim ", e.head_dim, " and value_dim ", e.value_dim,
                                          "; is_fast() must be asked first"));
}

/// Calls `launch` of the instance, of those of `shapes`, that has the shape of the step.
template <template <class, HeadShape> class Instance, auto const& shapes, class T, class Arguments, std::size_t... i>
void launch_shape(Arguments const& a, Workspace const& workspace, cudaStream_t stream, std::index_sequence<i...>) {
  HeadShape const wanted{a.extents.head_dim, a.extents.value_dim};
  bool const found = ((wanted == shapes[i] && (Instance<T, shapes[i]>::launch(a, workspace, stream), true)) || ...);
  if (!found) refuse(a.extents);
}

}  // namespace

template <class T>
void fold(FoldArguments<T> const& a, Workspace const& workspace, cudaStream_t stream) {
  launch_shape<FoldInstance, fold_shapes, T>(a, workspace, stream, std::make_index_sequence<fold_shapes.size()>());
}
template <class T>
void add_gradients(GradientArguments<T> const& a, Workspace const& workspace, cudaStream_t stream) {
  launch_shape<GradientInstance, gradient_shapes, T>(a, workspace, stream,
                                                     std::make_index_sequence<gradient_shapes.size()>());
}

template void fold(FoldArguments<__nv_bfloat16> const&, Workspace const&, cudaStream_t);
template void fold(FoldArguments<__half> const&, Workspace const&, cudaStream_t);
template void add_gradients(GradientArguments<__nv_bfloat16> const&, Workspace const&, cudaStream_t);
template void add_gradients(GradientArguments<__half> const&, Workspace const&, cudaStream_t);

}  // namespace annulus::cuda::detail::hopper
