// C interface of the Hopper kernels for hopper_bench.py: the library's choice, and variants beside it.

#include <array>

#include "annulus/backend/cuda/hopper/launch_fold.cuh"
#include "annulus/backend/cuda/hopper/launch_gradients.cuh"
#include "c_status.hpp"

namespace cuda = annulus::cuda::detail;
namespace hopper = annulus::cuda::detail::hopper;
using T = __nv_bfloat16;

// Rows and BenchStep are not in the unnamed namespace: functions that take them would not be exported.

/// A tensor [batch, rows, heads, dim], element strides.
struct Rows {
  void* data;
  long long batch, row, head;
};

/// A step of either pass. Statistics are dense [batch, query_heads, queries] with `statistic_head` from head to head.
struct BenchStep {
  int batch, queries, keys, query_heads, kv_heads, head_dim, value_dim;
  int coverage, low, high;  ///< as cuda::Coverage
  int2 const* ranges;
  float softmax_scale;
  int opens, closes, opens_keys, closes_keys;  ///< backward pass: opens and closes are those of dq
  Rows q, k, v, dout, accumulator, output, dq, dk, dv, dq_result, dk_result, dv_result;
  float *maximum, *sum, *lse, *lse_remainder, *delta;
  long long statistic_head;
  int heads_together, keys_at_once;  ///< hopper::GradientTuning
  int* counters;
  int4* bounds;
};

namespace {

template <class U>
cuda::StridedRows<U> rows_of(Rows const& r) {
  return {static_cast<U*>(r.data), r.batch, r.row, r.head};
}
template <class U>
cuda::StridedStatistic<U> statistic_of(float* data, BenchStep const& s) {
  return {data, s.statistic_head * s.query_heads, s.statistic_head, 1};
}
cuda::StepExtents extents_of(BenchStep const& s) {
  return {s.batch, s.queries, s.keys, s.query_heads, s.kv_heads, s.head_dim, s.value_dim};
}
cuda::VisibleKeys visible_of(BenchStep const& s) {
  return {static_cast<cuda::Coverage>(s.coverage), s.low, s.high, s.ranges, 0};
}

cuda::StepArguments<T> step_arguments(BenchStep const& s) {
  return {extents_of(s),         visible_of(s),         s.softmax_scale,      0,
          rows_of<T const>(s.q), rows_of<T const>(s.k), rows_of<T const>(s.v)};
}

cuda::FoldArguments<T> fold_arguments(BenchStep const& s) {
  cuda::FoldArguments<T> a{step_arguments(s)};
  a.opens = s.opens != 0;
  a.closes = s.closes != 0;
  a.accumulator = rows_of<float>(s.accumulator);
  a.maximum = statistic_of<float>(s.maximum, s);
  a.sum = statistic_of<float>(s.sum, s);
  a.output = rows_of<T>(s.output);
  a.lse = statistic_of<float>(s.lse, s);
  a.lse_remainder = statistic_of<float>(s.lse_remainder, s);
  return a;
}

cuda::GradientArguments<T> gradient_arguments(BenchStep const& s) {
  cuda::GradientArguments<T> a{step_arguments(s)};
  a.dout = rows_of<T const>(s.dout);
  a.lse = statistic_of<float const>(s.lse, s);
  a.lse_remainder = statistic_of<float const>(s.lse_remainder, s);
  a.delta = statistic_of<float const>(s.delta, s);
  a.dq = rows_of<float>(s.dq);
  a.dk = rows_of<float>(s.dk);
  a.dv = rows_of<float>(s.dv);
  a.opens_queries = s.opens != 0;
  a.closes_queries = s.closes != 0;
  a.opens_keys = s.opens_keys != 0;
  a.closes_keys = s.closes_keys != 0;
  a.dq_result = rows_of<T>(s.dq_result);
  a.dk_result = rows_of<T>(s.dk_result);
  a.dv_result = rows_of<T>(s.dv_result);
  return a;
}

/// The library's tile of a shape, with the alarm at the other of its two places.
constexpr hopper::FoldTile other_alarm(int dim) {
  hopper::FoldTile tile = hopper::fold_tile(dim, dim);
  tile.late_alarm = !tile.late_alarm;
  return tile;
}

struct FoldVariant {
  char const* name;
  int head_dim;  ///< 0: any
  void (*launch)(cuda::FoldArguments<T> const&, hopper::Workspace const&, cudaStream_t);
};
constexpr std::array fold_variants{
    FoldVariant{"library", 0, &hopper::fold<T>},
    FoldVariant{"other alarm", 128, &hopper::launch_fold<hopper::FoldChoice<128, 128, other_alarm(128)>, T>},
    FoldVariant{"other alarm", 64, &hopper::launch_fold<hopper::FoldChoice<64, 64, other_alarm(64)>, T>},
};

/// Sum over dim of dout * output. A warp per row and head.
__global__ void __launch_bounds__(256) row_delta(BenchStep s) {
  int const index = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31, heads = s.batch * s.query_heads;
  if (index >= s.queries * heads) return;
  int const head = index / s.queries, row = index - head * s.queries, item = head / s.query_heads;
  auto const at = [&](Rows const& r) {
    return static_cast<T const*>(r.data) + item * r.batch + (head - item * s.query_heads) * r.head + row * r.row;
  };
  float sum = 0.f;
  for (int d = 2 * lane; d < s.value_dim; d += 64) {
    auto const x = *reinterpret_cast<__nv_bfloat162 const*>(at(s.dout) + d);
    auto const y = *reinterpret_cast<__nv_bfloat162 const*>(at(s.output) + d);
    sum += __bfloat162float(x.x) * __bfloat162float(y.x) + __bfloat162float(x.y) * __bfloat162float(y.y);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (lane == 0) s.delta[head * s.statistic_head + row] = sum;
}

}  // namespace

extern "C" {
int bench_fold_variants() { return static_cast<int>(fold_variants.size()); }
char const* bench_fold_name(int i) { return fold_variants[static_cast<std::size_t>(i)].name; }
int bench_fold_head_dim(int i) { return fold_variants[static_cast<std::size_t>(i)].head_dim; }

/// 0, or 1 after a message on stderr.
int bench_fold(int variant, BenchStep const* step, void* stream) {
  return status_of([&] {
    fold_variants[static_cast<std::size_t>(variant)].launch(fold_arguments(*step), {step->counters, step->bounds},
                                                            static_cast<cudaStream_t>(stream));
  });
}
int bench_delta(BenchStep const* step, void* stream) {
  int const rows = step->batch * step->query_heads * step->queries;
  row_delta<<<(rows + 7) / 8, 256, 0, static_cast<cudaStream_t>(stream)>>>(*step);
  return cudaGetLastError() == cudaSuccess ? 0 : 1;
}
int bench_gradients(BenchStep const* step, void* stream) {
  hopper::GradientTuning const tuning{step->heads_together, step->keys_at_once};
  hopper::Workspace const workspace{step->counters, step->bounds};
  auto const queue = static_cast<cudaStream_t>(stream);
  return status_of([&] {
    if (step->head_dim == 64)
      hopper::launch_gradients<hopper::GradientChoice<64, 64, hopper::gradient_stages(64, 64)>>(
          gradient_arguments(*step), workspace, tuning, queue);
    else
      hopper::launch_gradients<hopper::GradientChoice<128, 128, hopper::gradient_stages(128, 128)>>(
          gradient_arguments(*step), workspace, tuning, queue);
  });
}
}
