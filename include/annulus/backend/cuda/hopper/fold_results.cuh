#pragma once
// End of a tile of the forward pass: joins the running state, and writes it back or writes the results.

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

/// What the end of a tile does for two rows of a thread: `row` and the one 8 below.
template <class C, class T, bool opens, bool closes>
class FoldResults {
 public:
  __device__ FoldResults(FoldParameters<T> const& a, int head, int row) : a_(a), head_(head), row_(row) {}

  /// Reads the running state, as far as registers allow. A thread without a row reads the last one.
  __device__ __forceinline__ void load_state() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int const row = min(row_ + 8 * r, a_.visible.queries - 1);
      maximum_[r] = __ldcs(row_of(a_.maximum, head_, a_.query_heads, row));
      sum_[r] = __ldcs(row_of(a_.sum, head_, a_.query_heads, row));
      if constexpr (loads_ahead) {
#pragma unroll
        for (int j = 0; j < C::value_dim / 8; ++j) before_[r][j] = load_pair(r, j);
      }
    }
  }

  __device__ __forceinline__ void write(float (&o)[C::value_dim / 2], float (&reference)[2], float (&sum)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      float maximum = reference[r] * 0.693147182f;
      if constexpr (!opens) join(o, r, reference[r], sum[r], maximum);
      if constexpr (closes)
        write_results(o, r, reference[r], sum[r]);
      else
        write_state(o, r, maximum, sum[r]);
    }
  }

 private:
  /// Whether the accumulator is read while the last product runs.
  static constexpr bool loads_ahead = !opens && C::value_dim <= 128;

  /// Columns 8j + column(), + 1 of the accumulator.
  __device__ __forceinline__ float2 load_pair(int r, int j) const {
    int const row = min(row_ + 8 * r, a_.visible.queries - 1);
    float const* const line = row_of(a_.accumulator, head_, a_.query_heads, row) + column();
    return __ldcs(reinterpret_cast<float2 const*>(line + 8 * j));
  }
  static __device__ __forceinline__ int column() { return 2 * (lane_now() & 3); }
  __device__ __forceinline__ bool exists(int r) const { return row_ + 8 * r < a_.visible.queries; }

  /// Joins the state and the sums of this step, relative to the larger reference.
  __device__ __forceinline__ void join(float (&o)[C::value_dim / 2], int r, float& reference, float& sum,
                                       float& maximum) const {
    float const old = reference_of(maximum_[r]), joint = fmaxf(reference, old);
    float const keep_new = reference == -infinity ? 0.f : exp2_fast(reference - joint);
    float const keep_old = old == -infinity ? 0.f : exp2_fast(old - joint);
    if (old >= reference) maximum = maximum_[r];
    reference = joint;
    sum = sum * keep_new + sum_[r] * keep_old;
#pragma unroll
    for (int j = 0; j < C::value_dim / 8; ++j) {
      float2 before;
      if constexpr (loads_ahead)
        before = before_[r][j];
      else
        before = load_pair(r, j);
      float* const pair = o + 4 * j + 2 * r;
      pair[0] = pair[0] * keep_new + before.x * keep_old;
      pair[1] = pair[1] * keep_new + before.y * keep_old;
    }
  }

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
  float2 before_[2][loads_ahead ? C::value_dim / 8 : 1];
  float maximum_[2], sum_[2];
};

}  // namespace annulus::cuda::detail::hopper
