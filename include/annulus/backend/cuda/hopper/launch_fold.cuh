#pragma once
// Launch of a forward step: from pointers and strides to tensor maps and the order of tiles.

#include "annulus/backend/cuda/hopper/fold_kernel.cuh"
#include "annulus/backend/cuda/hopper/launch.cuh"

namespace annulus::cuda::detail::hopper {

/// Heads whose keys and values fill about half of the L2 are worked on at the same time.
inline int fold_heads_together(StepExtents const& e) {
  double const head_bytes = 2.0 * (e.head_dim + e.value_dim) * std::max(e.keys, 1);
  int const kv_heads = std::max(1, static_cast<int>(std::min(0.5 * gpu_limits().l2_bytes / head_bytes, 1e6)));
  return static_cast<int>(
      std::min<long long>(e.batch * e.query_heads, static_cast<long long>(kv_heads) * (e.query_heads / e.kv_heads)));
}

template <class C, class T>
void set_fold_maps(FoldParameters<T>& p, FoldArguments<T> const& a) {
  StepExtents const& e = a.extents;
  p.q = operand_map<T>(a.q, e.batch, e.queries, e.query_heads, e.head_dim, bounded_rows);
  p.k = p.v = p.q;  // not used without keys
  if (e.keys == 0) return;
  p.k = operand_map<T>(a.k, e.batch, e.keys, e.kv_heads, e.head_dim, C::keys);
  p.v = operand_map<T>(a.v, e.batch, e.keys, e.kv_heads, e.value_dim, C::keys);
}

template <class C, class T>
FoldParameters<T> fold_parameters(FoldArguments<T> const& a, Workspace const& workspace, cudaStream_t stream) {
  StepExtents const& e = a.extents;
  FoldParameters<T> p{};
  set_fold_maps<C>(p, a);
  p.q_rows = a.q;
  p.k_rows = a.k;
  p.v_rows = a.v;
  p.visible = visible_rows(a.visible, e);
  find_bounds(p.visible, e.batch, false, workspace.bounds, stream);
  p.accumulator = a.accumulator;
  p.maximum = a.maximum;
  p.sum = a.sum;
  p.output = a.output;
  p.lse = a.lse;
  p.lse_remainder = a.lse_remainder;
  p.sinks = a.sinks;
  p.sink_count = a.sinks ? a.sink_count : 0;
  p.sink_head = a.sink_head;
  p.sink = a.sink;
  p.query_heads = e.query_heads;
  p.heads = e.batch * e.query_heads;
  p.group = e.query_heads / e.kv_heads;
  p.logits_to_log2 = a.softmax_scale * log2_of_e;
  p.query_tiles = (e.queries + C::queries - 1) / C::queries;
  p.tiles = p.query_tiles * p.heads;
  p.heads_together = fold_heads_together(e);
  p.last_first = p.visible.ranges != nullptr || p.visible.high < e.keys - 1;
  p.queue = workspace.counters;
  return p;
}

template <class C, class T>
void launch_fold(FoldArguments<T> const& a, Workspace const& workspace, cudaStream_t stream) {
  if (a.extents.batch == 0 || a.extents.queries == 0 || a.extents.query_heads == 0) return;
  FoldParameters<T> const p = fold_parameters<C>(a, workspace, stream);
  if (a.opens && a.closes)
    launch_persistent<&fold_kernel<C, T, true, true>, C>(p, p.tiles, stream);
  else if (a.opens)
    launch_persistent<&fold_kernel<C, T, true, false>, C>(p, p.tiles, stream);
  else if (a.closes)
    launch_persistent<&fold_kernel<C, T, false, true>, C>(p, p.tiles, stream);
  else
    launch_persistent<&fold_kernel<C, T, false, false>, C>(p, p.tiles, stream);
}

}  // namespace annulus::cuda::detail::hopper
