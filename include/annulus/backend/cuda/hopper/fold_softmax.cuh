#pragma once
// Online softmax of a computing warpgroup's logits, in its registers (numerics/softmax.hpp; Milakov and Gimelshein,
// "Online normalizer calculation for softmax", 2018), with a reference that need not be the maximum.
//
// Weights are relative to a reference: T and fp32 have the exponents for values above 1. The reference is the maximum
// of a row's first block, rounded up to an integer, so that rescaling is exact; after that no maximum is computed. A
// block's row sums, needed anyway, tell whether a logit ran away: they are huge, infinite or NaN. Only then the logits
// are computed again and the reference is raised. The usual block needs one vote of the warpgroup, not a pass over the
// logits, an exchange between threads and a pass over the output.

#include "annulus/backend/cuda/hopper/fold_work.cuh"

namespace annulus::cuda::detail::hopper {

/// Two rows per thread: the thread's row of a product and the one 8 below. References are in log2 units, -inf where
/// there is none yet.
template <class C, class T>
struct FoldSoftmax {
  static constexpr int keys = C::keys;
  /// Weights that both T and the sum of a row can hold.
  static constexpr float largest_sum = std::is_same_v<T, __half> ? 32768.f : 4294967296.f;

  float s[keys / 2];          ///< logits / softmax scale, then weights
  std::uint32_t p[keys / 4];  ///< weights rounded to T: the A operand of P V
  float reference[2], sum[2];
  float shrink[2];  ///< what the output so far is to be multiplied by, where references were raised

  __device__ __forceinline__ void round() {
#pragma unroll
    for (int i = 0; i < keys / 4; ++i) p[i] = packed<T>(s[2 * i], s[2 * i + 1]);
  }

  /// For a negative scale: negates products, so that the maximum belongs to the largest logit.
  __device__ __forceinline__ void take_sign(float scale) {
    if (scale < 0.f) {
#pragma unroll
      for (int i = 0; i < keys / 2; ++i) s[i] = -s[i];
    }
  }

  /// Logits of pairs that the row does not see become -inf. `first` is the first key of the block.
  __device__ __forceinline__ void hide(VisibleRows const& visible, int batch, int row, int first) {
    int const column = 2 * (lane_now() & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int2 const seen = visible.keys_of(batch, min(row + 8 * r, visible.queries - 1));
      int const from = seen.x - first - column, to = seen.y - first - column;
#pragma unroll
      for (int j = 0; j < keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e < from || 8 * j + e >= to) s[4 * j + 2 * r + e] = -infinity;
    }
  }

  /// s becomes 2^(s scale - reference); returns the row sums of this thread's columns. `careful`: references may be
  /// -inf.
  template <bool careful>
  __device__ __forceinline__ void exponentiate(float scale, float (&block_sum)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float const base = careful && reference[r] == -infinity ? 0.f : reference[r];
      float part[2] = {0.f, 0.f};
#pragma unroll
      for (int j = 0; j < keys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * r + e];
          x = exp2_fast(__fmaf_rn(x, scale, -base));
          part[e] += x;
        }
      block_sum[r] = part[0] + part[1];
    }
  }

  __device__ __forceinline__ float top_of(int r) const {
    float top[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
    for (int j = 1; j < keys / 8; ++j) {
      top[0] = fmaxf(top[0], s[4 * j + 2 * r]);
      top[1] = fmaxf(top[1], s[4 * j + 2 * r + 1]);
    }
    return fmaxf(top[0], top[1]);
  }

  /// For blocks where rows may have no reference yet, after take_sign(): raises the references where a logit is 2^8
  /// above. True if the output has to be multiplied by `shrink`. `scale` is positive; nothing is written to `never`.
  __device__ __forceinline__ bool weigh_with_maximum(float scale, int volatile* never) {
    float const top[2] = {top_of(0) * scale, top_of(1) * scale};
    float const limit[2] = {reference[0] + 8.f, reference[1] + 8.f};
    bool const raise = __any_sync(~0u, top[0] > limit[0] || top[1] > limit[1]);
    if (raise) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float const highest = ceilf(quad_max(top[r]));
        shrink[r] = 1.f;
        if (highest > limit[r]) {
          shrink[r] = reference[r] == -infinity ? 0.f : exp2_fast(reference[r] - highest);
          reference[r] = highest;
          sum[r] *= shrink[r];
        }
      }
    }
    float block_sum[2];
    exponentiate<true>(scale, block_sum);
    // A store that depends on the sums keeps the wait for O += P V, which follows, behind the exponentials. A trap would
    // too, but cost registers.
    if (block_sum[0] + block_sum[1] < 0.f) *never = 1;
    sum[0] += block_sum[0];
    sum[1] += block_sum[1];
    return raise;
  }
};

}  // namespace annulus::cuda::detail::hopper
