#pragma once
// Launch of a step of the backward pass: tensor maps, the order of tiles, parts of the keys, and the end of dq.

#include "annulus/backend/cuda/hopper/gradient_kernel.cuh"
#include "annulus/backend/cuda/hopper/launch.cuh"

namespace annulus::cuda::detail::hopper {

/// Choices of a launch; 0: chosen here.
struct GradientTuning {
  /// kv heads that are worked on at the same time. Few: q, dout and dq stay in the L2. Many: fewer blocks of keys wait
  /// for each other. 4, 8, 16, causal, on an H200 (TFLOP/s): 438, 450, 458 at 8k, 534, 531, 500 at 64k (head_dim 128).
  int heads_together = 0;
  /// Keys of one launch. Without hidden pairs, one launch over 64k keys is slower than parts (506 and 527 TFLOP/s,
  /// head_dim 64 382 and 407): its tiles drift apart and find less in the L2.
  int keys_at_once = 0;
};

template <class T>
GradientTuning gradient_tuning(GradientArguments<T> const& a, VisibleRows const& visible, GradientTuning given) {
  StepExtents const& e = a.extents;
  bool const sees_all = visible.ranges == nullptr && visible.high >= e.keys - 1 && visible.low <= 1 - e.queries;
  int const all = std::max(e.keys, 1), part = !sees_all ? all : e.head_dim > 64 ? 16384 : 8192;
  int const together = std::clamp((1 << 17) / std::max(e.queries, 1), 4, 16);
  int const heads = given.heads_together > 0 ? given.heads_together : together;
  int const keys = given.keys_at_once > 0 ? given.keys_at_once : part;
  return {std::clamp(heads, 1, e.batch * e.kv_heads), std::min(keys, all)};
}

/// End of dq: writes the results, and zeros of rows that see no key. A thread block per 64 query rows of a head.
template <class T>
__global__ void __launch_bounds__(256) finish_queries(VisibleRows visible, StridedRows<float> dq, StridedRows<T> result,
                                                      int query_heads, int head_dim, bool opens, bool closes) {
  int const head = blockIdx.x / visible.query_blocks, fours = head_dim / 4;
  int const first = (blockIdx.x - head * visible.query_blocks) * bounded_rows;
  KeyBounds const bounds = visible.bounds_of(head / query_heads, first);
  bool const holds_nothing = opens && bounds.begin >= bounds.end;
  if (!closes && !holds_nothing) return;
  int const count = min(bounded_rows, visible.queries - first) * fours;
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    int const row = first + i / fours, column = i % fours * 4;
    float* const sum = row_of(dq, head, query_heads, row) + column;
    float4 const value = holds_nothing ? float4{0, 0, 0, 0} : *reinterpret_cast<float4 const*>(sum);
    if (closes)
      *reinterpret_cast<uint2*>(row_of(result, head, query_heads, row) + column) =
          uint2{packed<T>(value.x, value.y), packed<T>(value.z, value.w)};
    else
      *reinterpret_cast<float4*>(sum) = value;
  }
}

template <class C, class T>
void set_gradient_maps(GradientParameters<T>& p, GradientArguments<T> const& a) {
  StepExtents const& e = a.extents;
  p.k = operand_map<T>(a.k, e.batch, e.keys, e.kv_heads, e.head_dim, C::keys);
  p.v = operand_map<T>(a.v, e.batch, e.keys, e.kv_heads, e.value_dim, C::keys);
  p.q = p.dout = p.dq = p.k;  // not used without queries
  if (e.queries == 0) return;
  p.q = operand_map<T>(a.q, e.batch, e.queries, e.query_heads, e.head_dim, C::queries);
  p.dout = operand_map<T>(a.dout, e.batch, e.queries, e.query_heads, e.value_dim, C::queries);
  p.dq = sum_map(a.dq, e.batch, e.queries, e.query_heads, e.head_dim, C::queries);
}

template <class C, class T>
GradientParameters<T> gradient_parameters(GradientArguments<T> const& a, VisibleRows const& visible,
                                          Workspace const& workspace) {
  StepExtents const& e = a.extents;
  GradientParameters<T> p{};
  set_gradient_maps<C>(p, a);
  p.visible = visible;
  p.lse = a.lse;
  p.lse_remainder = a.lse_remainder;
  p.delta = a.delta;
  p.dk = a.dk;
  p.dv = a.dv;
  p.dk_result = a.dk_result;
  p.dv_result = a.dv_result;
  p.opens_queries = a.opens_queries;
  p.opens_keys = a.opens_keys;
  p.closes_keys = a.closes_keys;
  p.query_heads = e.query_heads;
  p.kv_heads = e.kv_heads;
  p.all_kv_heads = e.batch * e.kv_heads;
  p.group = e.query_heads / e.kv_heads;
  p.logits_to_log2 = a.softmax_scale * log2_of_e;
  p.softmax_scale = a.softmax_scale;
  p.queue = workspace.counters;
  p.turns = workspace.counters + 1;
  return p;
}

/// All keys, in parts: a launch each.
template <class C, class T>
void launch_key_parts(GradientArguments<T> const& a, VisibleRows const& visible, Workspace const& workspace,
                      GradientTuning const& tuning, cudaStream_t stream) {
  GradientParameters<T> p = gradient_parameters<C>(a, visible, workspace);
  p.heads_together = tuning.heads_together;
  int const blocks_at_once = (tuning.keys_at_once + C::keys - 1) / C::keys;
  for (int first = 0; first < visible.key_blocks; first += blocks_at_once) {
    p.first_key_block = first;
    p.key_blocks = std::min(blocks_at_once, visible.key_blocks - first);
    p.tiles = p.key_blocks * p.all_kv_heads;
    launch_persistent<&gradient_kernel<C, T>, C>(p, p.tiles, stream);
  }
}

template <class C, class T>
void launch_gradients(GradientArguments<T> const& a, Workspace const& workspace, GradientTuning const& tuning,
                      cudaStream_t stream) {
  StepExtents const& e = a.extents;
  if (e.batch == 0 || e.query_heads == 0) return;
  VisibleRows visible = visible_rows(a.visible, e);
  find_bounds(visible, e.batch, true, workspace.bounds, stream);
  if (e.keys > 0) launch_key_parts<C>(a, visible, workspace, gradient_tuning(a, visible, tuning), stream);
  bool const sees_all = a.visible.coverage == Coverage::full && e.keys > 0;
  if (e.queries == 0 || (!a.closes_queries && (!a.opens_queries || sees_all))) return;
  int const blocks = visible.query_blocks * e.batch * e.query_heads;
  finish_queries<T><<<blocks, 256, 0, stream>>>(visible, a.dq, a.dq_result, e.query_heads, e.head_dim, a.opens_queries,
                                                a.closes_queries);
  check(cudaGetLastError(), "launch of a kernel");
}

}  // namespace annulus::cuda::detail::hopper
