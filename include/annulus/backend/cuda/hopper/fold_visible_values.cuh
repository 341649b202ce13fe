#pragma once
// Values that are not finite behind hidden keys. A product multiplies every value of a block, a hidden one by 0, and 0
// times infinity is NaN: where an output is NaN, its row is summed again over the keys that it sees alone.

#include "annulus/backend/cuda/hopper/fold_results.cuh"

namespace annulus::cuda::detail::hopper {

/// A thread's two rows of a product: `row` and the one 8 below, in columns 8j + column, + 1. All threads of a warp call
/// the functions.
template <class C, class T, class Results>
class VisibleValues {
 public:
  __device__ VisibleValues(FoldParameters<T> const& a, int head, int row)
      : a_(a),
        batch_(head / a.query_heads),
        head_(head - batch_ * a.query_heads),
        row_(row),
        column_(2 * (lane_now() & 3)) {}

  /// Replaces rows of the output that are NaN though their sums of weights are not. Keys: those of [begin, end).
  __device__ __forceinline__ void repair(int begin, int end, float const (&reference)[2], float const (&sum)[2],
                                         float (&o)[C::value_dim / 2]) const {
    float zero[2] = {0.f, 0.f};  // NaN if the row is
#pragma unroll
    for (int i = 0; i < C::value_dim / 2; ++i) zero[(i / 2) & 1] = __fmaf_rn(o[i], 0.f, zero[(i / 2) & 1]);
    if (!__any_sync(~0u, !(zero[0] + zero[1] == 0.f))) [[likely]]
      return;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (__any_sync(~0u, !(quad_sum(zero[r]) == 0.f))) sum_again(r, begin, end, reference[r], quad_sum(sum[r]), o);
  }

 private:
  /// The rows r of all quads of the warp that have finite sums.
  __device__ __forceinline__ void sum_again(int r, int begin, int end, float reference, float sum,
                                            float (&o)[C::value_dim / 2]) const {
    int const row = min(row_ + 8 * r, a_.visible.queries - 1);
    if (isfinite(sum)) Results(a_, batch_ * a_.query_heads + head_, row_).begin_row_again(o, r, reference);
    int2 const seen = a_.visible.keys_of(batch_, row);
    T const* const q = at(a_.q_rows, head_, row);
#pragma unroll 1
    for (int key = begin; key < end; ++key) {
      T const* const k = at(a_.k_rows, head_ / a_.group, key);
      float logit = 0.f;
#pragma unroll 1
      for (int j = 0; j < C::head_dim; j += 8) {
        logit = __fmaf_rn(static_cast<float>(q[j]), static_cast<float>(k[j]), logit);
        logit = __fmaf_rn(static_cast<float>(q[j + 1]), static_cast<float>(k[j + 1]), logit);
      }
      logit = quad_sum(logit);
      if (!isfinite(sum) || key < seen.x || key >= seen.y) continue;
      float const weight = exp2_fast(__fmaf_rn(logit, a_.logits_to_log2, -reference));
      T const* const v = at(a_.v_rows, head_ / a_.group, key);
#pragma unroll
      for (int j = 0; j < C::value_dim / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& element = o[4 * j + 2 * r + e];
          element = __fmaf_rn(weight, static_cast<float>(v[8 * j + e]), element);
        }
    }
  }
  /// The thread's first element of a row.
  __device__ __forceinline__ T const* at(StridedRows<T const> const& rows, int head, int row) const {
    return rows.data + batch_ * rows.batch + head * rows.head + row * rows.row + column_;
  }

  FoldParameters<T> const& a_;
  int batch_, head_, row_, column_;
};

}  // namespace annulus::cuda::detail::hopper
