#pragma once
// Begin and end of a tile of the forward pass: the running state, and the results.

#include "annulus/backend/cuda/hopper/fold_work.cuh"

namespace annulus::cuda::detail::hopper {

/// Natural log-sum-exp, and what rounding it to fp32 took away.
struct LseParts {
  float lse, remainder;
};

/// log(sum * 2^reference), rounded once. The logarithm of 2 is taken in two parts, and sums of two terms keep what
/// rounding takes (Knuth's two-sum, Dekker's fast two-sum).
__device__ __forceinline__ LseParts lse_of(float reference, float sum) {
  if (sum == 0.f) return {-infinity, 0.f};
  constexpr float log_of_2 = 0.693147182f, rest_of_log_of_2 = -1.904654e-9f;
  float const high = __fmul_rn(reference, log_of_2);
  float const low = __fmaf_rn(reference, log_of_2, -high) + reference * rest_of_log_of_2;
  float const logarithm = logf(sum), first = __fadd_rn(high, logarithm), taken = __fsub_rn(first, high);
  if (!isfinite(first)) return {first, 0.f};
  float const error = __fadd_rn(__fsub_rn(high, __fsub_rn(first, taken)), __fsub_rn(logarithm, taken)) + low;
  float const lse = __fadd_rn(first, error);
  return {lse, __fsub_rn(error, __fsub_rn(lse, first))};
}

/// A stored maximum in log2 units. References are integers there: one that is within rounding of an integer is that.
__device__ __forceinline__ float reference_of(float maximum) {
  float const scaled = maximum * log2_of_e, whole = rintf(scaled);
  return fabsf(scaled - whole) <= 3e-7f * fabsf(scaled) ? whole : scaled;
}

/// The sums of two rows of a thread in memory: `row` and the one 8 below.
template <class C, class T, bool opens, bool closes>
class FoldResults {
 public:
  __device__ FoldResults(FoldParameters<T> const& a, int head, int row) : a_(a), head_(head), row_(row) {}

  /// The sums before the tile's keys. Of the four threads of a row, one has its sum of weights. A thread without a row
  /// reads the last one.
  __device__ __forceinline__ void begin(float (&o)[C::value_dim / 2], float (&reference)[2], float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      reference[r] = -infinity;
      sum[r] = 0.f;
      if constexpr (!opens) {
        reference[r] = reference_of(stored(a_.maximum, r));
        sum[r] = column() == 0 ? stored(a_.sum, r) : 0.f;
      }
      begin_row(o, r, 1.f);
    }
  }
  /// The output of row r before the tile's keys, times a factor.
  __device__ __forceinline__ void begin_row(float (&o)[C::value_dim / 2], int r, float factor) const {
#pragma unroll
    for (int j = 0; j < C::value_dim / 8; ++j) {
      float2 before{0.f, 0.f};
      if constexpr (!opens) before = load_pair(r, j);
      o[4 * j + 2 * r] = before.x * factor;
      o[4 * j + 2 * r + 1] = before.y * factor;
    }
  }
  /// The same, relative to another reference.
  __device__ __forceinline__ void begin_row_again(float (&o)[C::value_dim / 2], int r, float reference) const {
    float factor = 0.f;
    if constexpr (!opens) {
      float const old = reference_of(stored(a_.maximum, r));
      if (old != -infinity) factor = exp2_fast(old - reference);
    }
    begin_row(o, r, factor);
  }

  __device__ __forceinline__ void write(float (&o)[C::value_dim / 2], float (&reference)[2], float (&sum)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      if constexpr (closes)
        write_results(o, r, reference[r], sum[r]);
      else
        write_state(o, r, reference[r] * 0.693147182f, sum[r]);
    }
  }

 private:
  __device__ __forceinline__ int stored_row(int r) const { return min(row_ + 8 * r, a_.visible.queries - 1); }
  __device__ __forceinline__ float stored(StridedStatistic<float> const& statistic, int r) const {
    return __ldcs(row_of(statistic, head_, a_.query_heads, stored_row(r)));
  }
  /// Columns 8j + column(), + 1 of the accumulator.
  __device__ __forceinline__ float2 load_pair(int r, int j) const {
    float const* const line = row_of(a_.accumulator, head_, a_.query_heads, stored_row(r)) + column();
    return __ldcs(reinterpret_cast<float2 const*>(line + 8 * j));
  }
  static __device__ __forceinline__ int column() { return 2 * (lane_now() & 3); }
  __device__ __forceinline__ bool exists(int r) const { return row_ + 8 * r < a_.visible.queries; }

  __device__ __forceinline__ void write_state(float const (&o)[C::value_dim / 2], int r, float maximum,
                                              float sum) const {
    if (!exists(r)) return;
    int const row = row_ + 8 * r;
    if (column() == 0) {
      __stcs(row_of(a_.maximum, head_, a_.query_heads, row), maximum);
      __stcs(row_of(a_.sum, head_, a_.query_heads, row), sum);
    }
    float* const line = row_of(a_.accumulator, head_, a_.query_heads, row) + column();
#pragma unroll
    for (int j = 0; j < C::value_dim / 8; ++j)
      __stcs(reinterpret_cast<float2*>(line + 8 * j), float2{o[4 * j + 2 * r], o[4 * j + 2 * r + 1]});
  }

  __device__ __forceinline__ void write_results(float const (&o)[C::value_dim / 2], int r, float reference,
                                                float sum) const {
    float const factor = add_sinks(reference, sum);
    float const inverse = sum == 0.f ? 0.f : factor / sum;
    int const row = row_ + 8 * r;
    if (exists(r) && column() == 0) {
      LseParts const parts = lse_of(reference, sum);
      *row_of(a_.lse, head_, a_.query_heads, row) = parts.lse;
      if (a_.lse_remainder.data != nullptr) *row_of(a_.lse_remainder, head_, a_.query_heads, row) = parts.remainder;
    }
    write_rounded(row_of(a_.output, head_, a_.query_heads, row), o, r, inverse, exists(r), lane_now());
  }

  /// Adds the sink logits to a row; returns what its output is to be multiplied by.
  __device__ __forceinline__ float add_sinks(float& reference, float& sum) const {
    if (a_.sink_count == 0) return 1.f;
    float const* const sinks = a_.sinks + head_ % a_.query_heads * a_.sink_head;
    float joint = reference;
    for (int i = 0; i < a_.sink_count; ++i) joint = fmaxf(joint, sinks[i * a_.sink] * log2_of_e);
    if (joint == -infinity) return 1.f;
    float const factor = exp2_fast(reference - joint);
    sum *= factor;
    for (int i = 0; i < a_.sink_count; ++i) sum += exp2_fast(sinks[i * a_.sink] * log2_of_e - joint);
    reference = joint;
    return factor;
  }

  FoldParameters<T> const& a_;
  int head_, row_;
};

}  // namespace annulus::cuda::detail::hopper
