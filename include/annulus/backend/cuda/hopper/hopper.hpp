#pragma once
// Fast path of steps on Hopper GPUs (compute capability 9.0): which steps it takes, and how to put them on a stream.
// Compiles without nvcc; the functions are those of compiled/.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "annulus/backend/cuda/step_arguments.hpp"

namespace annulus::cuda::detail::hopper {

/// Dimensions of the rows of a kernel.
struct HeadShape {
  int head_dim, value_dim;

  constexpr bool operator==(HeadShape const&) const = default;
};
/// Shapes of the forward kernels, for bf16 and half.
inline constexpr std::array fold_shapes{HeadShape{64, 64},   HeadShape{96, 96},   HeadShape{128, 128},
                                        HeadShape{192, 192}, HeadShape{256, 256}, HeadShape{192, 128},
                                        HeadShape{128, 64}};
/// Shapes of the backward kernels. The sums of wider rows do not fit in registers.
inline constexpr std::array gradient_shapes{HeadShape{64, 64}, HeadShape{96, 96}, HeadShape{128, 128},
                                            HeadShape{128, 64}};

/// Device memory that a launch needs, from the caller. One step at a time uses it.
struct Workspace {
  int* counters = nullptr;  ///< 0 before the first step; kernels leave them 0
  int4* bounds = nullptr;   ///< contents unspecified
};
/// Elements of a workspace.
struct WorkspaceSize {
  long long counters = 0, bounds = 0;
};

namespace fast {

constexpr bool has(auto const& shapes, StepExtents const& e) {
  for (HeadShape const& shape : shapes)
    if (shape == HeadShape{e.head_dim, e.value_dim}) return true;
  return false;
}
/// True if rows can be copied, or read and written, 16 bytes at a time.
template <class T>
bool in_16_bytes(StridedRows<T> const& rows, int batch, int count, int heads) {
  constexpr long long unit = 16 / sizeof(T), most = (1ll << 40) / sizeof(T);
  auto const fits = [](long long stride, int extent) {
    return extent <= 1 || (stride > 0 && stride < most && stride % unit == 0);
  };
  bool const aligned = reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0;
  return count == 0 || (aligned && fits(rows.batch, batch) && fits(rows.row, count) && fits(rows.head, heads));
}
inline bool has_extents(StepExtents const& e) {
  constexpr long long most = 1ll << 29;
  if (e.kv_heads <= 0 || e.query_heads % e.kv_heads != 0) return false;
  long long const heads = static_cast<long long>(e.batch) * e.query_heads;
  return e.queries < most && e.keys < most && heads * (e.queries / 64 + 1) < most && heads * (e.keys / 64 + 1) < most;
}
/// Weights of hidden pairs are those of an infinite logit: the scale must not make it NaN.
inline bool has_logits(float scale, float softcap) { return std::isnormal(scale) && softcap == 0; }

}  // namespace fast

/// True if a Hopper GPU folds this step on the fast path: one of the shapes above, no soft cap, a scale other than 0, and
/// strides that are multiples of 16 bytes. Kernels multiply whole blocks of keys: where a row sees some keys of a block,
/// an infinite or NaN value of another key of that block makes the row's output NaN, because hidden weights are 0.
template <class T>
bool is_fast(FoldArguments<T> const& a) {
  StepExtents const& e = a.extents;
  bool const keeps = !a.opens || !a.closes;
  return fast::has(fold_shapes, e) && fast::has_extents(e) && fast::has_logits(a.softmax_scale, a.logit_softcap) &&
         fast::in_16_bytes(a.q, e.batch, e.queries, e.query_heads) &&
         fast::in_16_bytes(a.k, e.batch, e.keys, e.kv_heads) && fast::in_16_bytes(a.v, e.batch, e.keys, e.kv_heads) &&
         (!keeps || fast::in_16_bytes(a.accumulator, e.batch, e.queries, e.query_heads)) &&
         (!a.closes || fast::in_16_bytes(a.output, e.batch, e.queries, e.query_heads));
}

/// The same for a step of the backward pass.
template <class T>
bool is_fast(GradientArguments<T> const& a) {
  StepExtents const& e = a.extents;
  return fast::has(gradient_shapes, e) && fast::has_extents(e) && fast::has_logits(a.softmax_scale, a.logit_softcap) &&
         fast::in_16_bytes(a.q, e.batch, e.queries, e.query_heads) &&
         fast::in_16_bytes(a.dout, e.batch, e.queries, e.query_heads) &&
         fast::in_16_bytes(a.dq, e.batch, e.queries, e.query_heads) &&
         fast::in_16_bytes(a.k, e.batch, e.keys, e.kv_heads) && fast::in_16_bytes(a.v, e.batch, e.keys, e.kv_heads) &&
         fast::in_16_bytes(a.dk, e.batch, e.keys, e.kv_heads) && fast::in_16_bytes(a.dv, e.batch, e.keys, e.kv_heads) &&
         (!a.closes_queries || fast::in_16_bytes(a.dq_result, e.batch, e.queries, e.query_heads)) &&
         (!a.closes_keys || (fast::in_16_bytes(a.dk_result, e.batch, e.keys, e.kv_heads) &&
                             fast::in_16_bytes(a.dv_result, e.batch, e.keys, e.kv_heads)));
}

/// True if the current GPU has the instructions of the fast path.
bool is_hopper();

template <class T>
WorkspaceSize workspace_size(FoldArguments<T> const& a) {
  long long const items = a.visible.ranges_batch == 0 ? 1 : a.extents.batch;
  return {1, a.visible.coverage == Coverage::ranges ? items * ((a.extents.queries + 63) / 64) : 0};
}
template <class T>
WorkspaceSize workspace_size(GradientArguments<T> const& a) {
  StepExtents const& e = a.extents;
  long long const items = a.visible.ranges_batch == 0 ? 1 : e.batch, query_blocks = (e.queries + 63) / 64;
  return {1 + static_cast<long long>(e.batch) * e.query_heads * query_blocks,
          a.visible.coverage == Coverage::ranges ? items * (query_blocks + (e.keys + 127) / 128) : 0};
}

/// Puts a step for which is_fast() holds on a stream of the current GPU. Throws Error if a launch fails.
template <class T>
void fold(FoldArguments<T> const& arguments, Workspace const& workspace, cudaStream_t stream);
template <class T>
void add_gradients(GradientArguments<T> const& arguments, Workspace const& workspace, cudaStream_t stream);

}  // namespace annulus::cuda::detail::hopper
