#pragma once
// Numbers of the query rows of a step, as the arithmetic of a backward kernel wants them: one warp loads them to shared
// memory, two rows per lane.

#include "annulus/backend/cuda/hopper/finite_operands.cuh"
#include "annulus/backend/cuda/hopper/gradient_work.cuh"

namespace annulus::cuda::detail::hopper {

/// A stage: lse in log2 units, +inf (weight 0) for rows that saw nothing, NaN for those whose gradients are; delta times
/// a factor, finite; what rounding took from the lse; keys of the tile that a row sees, [low byte, high byte); flags.
struct GradientRowStage {
  float* words;

  __device__ float* lse() const { return words; }
  __device__ float* delta() const { return words + bounded_rows; }
  __device__ float* lse_rest() const { return words + 2 * bounded_rows; }
  __device__ std::uint16_t* keys() const { return reinterpret_cast<std::uint16_t*>(words + 3 * bounded_rows); }
  __device__ int& flags() const { return reinterpret_cast<int*>(words)[row_stage_words - 4]; }

  static constexpr int has_rest = 4;                                  ///< flag: lse_rest is not negligible
  static __device__ int has_hidden(int group) { return 1 << group; }  ///< flag: pairs of a half of the keys are hidden
};

template <class C, class T>
class GradientRowFeeder {
 public:
  __device__ GradientRowFeeder(GradientParameters<T> const& a, GradientMap<C> at, GradientSlots slots,
                               unsigned char* memory)
      : a_(a), at_(at), slots_(slots), memory_(memory) {}

  __device__ __forceinline__ void run() {
    Cursor<2> slot;
    while (true) {
      barrier_wait(at_.tile_full(slot.stage), slot.parity);
      GradientTile const tile = slots_.get(slot.stage);
      if (tile.number >= a_.tiles) break;
      GradientSteps<T> step(a_, tile);
      keys_are_finite_ = false;
      for (int t = 0; t < tile.steps; ++t) {
        if (t > 0) step.advance();
        load(step, step.query() + 2 * lane_now());
        q_.advance();
        o_.advance();
      }
      if (tile.steps > 0) kv_parity_ ^= 1;
      release(at_.tile_empty(slot.stage));
      slot.advance();
    }
  }

 private:
  /// What memory holds of a row. A row that does not exist reads the last one.
  struct StoredRow {
    float lse, lse_remainder, delta;
    int2 seen;
  };
  struct Row {
    float lse = infinity, delta = 0.f, lse_rest = 0.f;
    int keys = 0;  // a row that does not exist sees none

    __device__ __forceinline__ bool hides_some_of(int group) const {
      return (keys & 255) > 64 * group || keys >> 8 < 64 * group + 64;
    }
  };

  /// No load depends on another one: a step is not longer than two of them.
  __device__ __forceinline__ StoredRow stored_at(GradientSteps<T> const& step, int query) const {
    int const head = step.batch * a_.query_heads + step.head, row = min(query, a_.visible.queries - 1);
    bool const has_remainder = a_.lse_remainder.data != nullptr;
    return {*row_of(a_.lse, head, a_.query_heads, row),
            has_remainder ? *row_of(a_.lse_remainder, head, a_.query_heads, row) : 0.f,
            *row_of(a_.delta, head, a_.query_heads, row), a_.visible.keys_of(step.batch, row)};
  }
  __device__ __forceinline__ Row row_from(StoredRow const& stored, GradientSteps<T> const& step, int query) const {
    Row row;
    if (query >= a_.visible.queries) return row;
    if (stored.lse != -infinity) {
      constexpr float rest_of_log2_of_e = 1.925963033e-8f;
      float const high = __fmul_rn(stored.lse, log2_of_e);
      float const low =
          __fmaf_rn(stored.lse, log2_of_e, -high) + stored.lse * rest_of_log2_of_e + stored.lse_remainder * log2_of_e;
      float const sum = __fadd_rn(high, low);
      row.lse = sum - GradientFactors<T>::log2_of_weight;
      if (isfinite(sum)) row.lse_rest = __fsub_rn(low, __fsub_rn(sum, high));
    }
    if (isfinite(stored.delta))
      row.delta = stored.delta * GradientFactors<T>::of_ds(a_.softmax_scale);
    else
      row.lse = stored.delta - stored.delta;  // NaN
    int const first = step.key_block * gradient_keys, from = min(max(stored.seen.x - first, 0), gradient_keys);
    row.keys = from | min(max(stored.seen.y - first, 0), gradient_keys) << 8;
    return row;
  }

  __device__ __forceinline__ void load(GradientSteps<T> const& step, int query) {
    StoredRow const stored[2] = {stored_at(step, query), stored_at(step, query + 1)};
    Row const even = row_from(stored[0], step, query), odd = row_from(stored[1], step, query + 1);
    int flags = 0;
#pragma unroll
    for (int group = 0; group < 2; ++group)
      if (__any_sync(~0u, even.hides_some_of(group) || odd.hides_some_of(group)))
        flags |= GradientRowStage::has_hidden(group);
    constexpr float negligible = 6e-5f;  // of a weight: 2^-14
    if (__any_sync(~0u, fmaxf(fabsf(even.lse_rest), fabsf(odd.lse_rest)) > negligible))
      flags |= GradientRowStage::has_rest;

    barrier_wait(at_.rows_empty(stage_.stage), stage_.parity ^ 1);
    GradientRowStage const to{reinterpret_cast<float*>(memory_ + C::rows_at) + stage_.stage * row_stage_words};
    int const lane = lane_now();
    reinterpret_cast<float2*>(to.lse())[lane] = float2{even.lse, odd.lse};
    reinterpret_cast<float2*>(to.delta())[lane] = float2{even.delta, odd.delta};
    reinterpret_cast<float2*>(to.lse_rest())[lane] = float2{even.lse_rest, odd.lse_rest};
    reinterpret_cast<int*>(to.keys())[lane] = even.keys | odd.keys << 16;
    if (lane == 0) to.flags() = flags;
    if (flags & (GradientRowStage::has_hidden(0) | GradientRowStage::has_hidden(1))) clear_operands(to.lse());
    barrier_arrive(at_.rows_full(stage_.stage));  // 32 arrivals
    stage_.advance();
  }

  /// Of a step that hides pairs, while the warpgroups compute earlier ones.
  __device__ __forceinline__ void clear_operands(float* lse) {
    if (!keys_are_finite_) {
      barrier_wait(at_.kv_full(), kv_parity_);
      clear_not_finite<T>(memory_ + C::k_at, (C::k_bytes + C::v_bytes) / 128, nullptr);
      keys_are_finite_ = true;
    }
    __syncwarp();  // lse is written
    barrier_wait(at_.q_full(q_.stage), q_.parity);
    clear_not_finite<T>(memory_ + C::q_at + q_.stage * C::q_bytes, C::q_bytes / 128, lse);
    barrier_wait(at_.o_full(o_.stage), o_.parity);
    clear_not_finite<T>(memory_ + C::o_at + o_.stage * C::o_bytes, C::o_bytes / 128, lse);
    shared_writes_fence();
  }

  GradientParameters<T> const& a_;
  GradientMap<C> at_;
  GradientSlots slots_;
  unsigned char* memory_;
  Cursor<row_stages> stage_;
  Cursor<C::q_stages> q_;
  Cursor<C::o_stages> o_;
  std::uint32_t kv_parity_ = 0;
  bool keys_are_finite_ = false;  // of the tile, as far as its hidden pairs need it
};

}  // namespace annulus::cuda::detail::hopper
