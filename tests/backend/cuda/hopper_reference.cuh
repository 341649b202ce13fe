#pragma once
// Attention and its gradients, plainly, in double. All tensors are dense: q, dout [batch, query_heads, queries, dim],
// k, v [batch, kv_heads, keys, dim], lse, delta [batch, query_heads, queries]; query row i of an item sees the keys [x,
// y) of ranges[item * queries + i].

#include <cuda_runtime.h>

#include <cmath>

namespace hopper_check {

struct ReferenceStep {
  float const *q, *k, *v, *dout;
  int2 const* ranges;
  int queries, keys, query_heads, kv_heads, head_dim, value_dim;
  double scale;
  float const* sinks;  ///< [query_heads, sink_count]
  int sink_count;
};

__device__ inline double product(float const* a, float const* b, int dim) {
  double sum = 0;
  for (int d = 0; d < dim; ++d) sum += static_cast<double>(a[d]) * b[d];
  return sum;
}

/// Sum, or maximum, of a number of each of the 256 threads of a block.
template <bool maximum>
__device__ double of_block(double x) {
  __shared__ double all[256];
  __syncthreads();
  all[threadIdx.x] = x;
  __syncthreads();
  double result = all[0];
  for (int i = 1; i < 256; ++i) result = maximum ? fmax(result, all[i]) : result + all[i];
  return result;
}

/// A block per (query, head, item).
__global__ void reference_forward(ReferenceStep a, double* output, double* lse) {
  extern __shared__ double weights[];
  int const i = blockIdx.x, head = blockIdx.y, item = blockIdx.z, kv_head = head / (a.query_heads / a.kv_heads);
  long long const row = (static_cast<long long>(item) * a.query_heads + head) * a.queries + i;
  long long const keys = (static_cast<long long>(item) * a.kv_heads + kv_head) * a.keys;
  int2 const seen = a.ranges[item * a.queries + i];
  double top = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < a.keys; j += 256) {
    bool const sees = seen.x <= j && j < seen.y;
    weights[j] =
        sees ? a.scale * product(a.q + row * a.head_dim, a.k + (keys + j) * a.head_dim, a.head_dim) : -INFINITY;
    top = fmax(top, weights[j]);
  }
  for (int s = 0; s < a.sink_count; ++s) top = fmax(top, static_cast<double>(a.sinks[head * a.sink_count + s]));
  top = of_block<true>(top);
  for (int j = threadIdx.x; j < a.keys; j += 256) {
    weights[j] = weights[j] == -INFINITY ? 0 : exp(weights[j] - top);
    sum += weights[j];
  }
  sum = of_block<false>(sum);
  for (int s = 0; s < a.sink_count && top > -INFINITY; ++s) sum += exp(a.sinks[head * a.sink_count + s] - top);
  for (int d = threadIdx.x; d < a.value_dim; d += 256) {
    double value = 0;
    for (int j = max(seen.x, 0); j < min(seen.y, a.keys); ++j) value += weights[j] * a.v[(keys + j) * a.value_dim + d];
    output[row * a.value_dim + d] = sum > 0 ? value / sum : 0;
  }
  if (threadIdx.x == 0) lse[row] = sum > 0 ? top + log(sum) : -INFINITY;
}

/// Shared memory of a block for so many doubles: loops over them are compiled to loads of 16 bytes.
inline std::size_t reference_bytes(int doubles) { return (static_cast<std::size_t>(doubles) + 1) / 2 * 16; }

/// delta of each row. A thread per row.
__global__ void reference_delta(ReferenceStep a, double const* output, int rows, float* delta) {
  int const row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  double sum = 0;
  for (int d = 0; d < a.value_dim; ++d)
    sum +=
        output[static_cast<long long>(row) * a.value_dim + d] * a.dout[static_cast<long long>(row) * a.value_dim + d];
  delta[row] = static_cast<float>(sum);
}

/// A block per (query, head, item).
__global__ void reference_dq(ReferenceStep a, double const* lse, float const* delta, double* dq) {
  extern __shared__ double ds[];
  int const i = blockIdx.x, head = blockIdx.y, item = blockIdx.z, kv_head = head / (a.query_heads / a.kv_heads);
  long long const row = (static_cast<long long>(item) * a.query_heads + head) * a.queries + i;
  long long const keys = (static_cast<long long>(item) * a.kv_heads + kv_head) * a.keys;
  int2 const seen = a.ranges[item * a.queries + i];
  for (int j = threadIdx.x; j < a.keys; j += 256) {
    ds[j] = 0;
    if (j < seen.x || j >= seen.y) continue;
    double const logit = a.scale * product(a.q + row * a.head_dim, a.k + (keys + j) * a.head_dim, a.head_dim);
    double const dp = product(a.dout + row * a.value_dim, a.v + (keys + j) * a.value_dim, a.value_dim);
    ds[j] = exp(logit - lse[row]) * (dp - delta[row]) * a.scale;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < a.head_dim; d += 256) {
    double sum = 0;
    for (int j = 0; j < a.keys; ++j) sum += ds[j] * a.k[(keys + j) * a.head_dim + d];
    dq[row * a.head_dim + d] = sum;
  }
}

/// A block per (key, kv head, item).
__global__ void reference_dkv(ReferenceStep a, double const* lse, float const* delta, double* dk, double* dv) {
  extern __shared__ double p[];
  double* const ds = p + a.queries;
  int const j = blockIdx.x, kv_head = blockIdx.y, item = blockIdx.z, group = a.query_heads / a.kv_heads;
  long long const key = (static_cast<long long>(item) * a.kv_heads + kv_head) * a.keys + j;
  double dk_sum = 0, dv_sum = 0;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    long long const rows = (static_cast<long long>(item) * a.query_heads + head) * a.queries;
    __syncthreads();
    for (int i = threadIdx.x; i < a.queries; i += 256) {
      int2 const seen = a.ranges[item * a.queries + i];
      p[i] = ds[i] = 0;
      if (j < seen.x || j >= seen.y) continue;
      double const logit = a.scale * product(a.q + (rows + i) * a.head_dim, a.k + key * a.head_dim, a.head_dim);
      double const dp = product(a.dout + (rows + i) * a.value_dim, a.v + key * a.value_dim, a.value_dim);
      p[i] = exp(logit - lse[rows + i]);
      ds[i] = p[i] * (dp - delta[rows + i]) * a.scale;
    }
    __syncthreads();
    for (int i = 0; i < a.queries; ++i) {
      if (threadIdx.x < a.head_dim) dk_sum += ds[i] * a.q[(rows + i) * a.head_dim + threadIdx.x];
      if (threadIdx.x < a.value_dim) dv_sum += p[i] * a.dout[(rows + i) * a.value_dim + threadIdx.x];
    }
  }
  if (threadIdx.x < a.head_dim) dk[key * a.head_dim + threadIdx.x] = dk_sum;
  if (threadIdx.x < a.value_dim) dv[key * a.value_dim + threadIdx.x] = dv_sum;
}

}  // namespace hopper_check
