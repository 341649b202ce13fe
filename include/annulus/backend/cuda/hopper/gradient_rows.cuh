#pragma once
// Numbers of the query rows of a step, as the arithmetic of a backward kernel wants them: one warp loads them to shared
// memory, two rows per lane.

#include "annulus/backend/cuda/hopper/gradient_work.cuh"

namespace annulus::cuda::detail::hopper {

/// A stage: lse in log2 units, +inf (weight 0) for rows that saw nothing or do not exist; delta times a factor; what
/// rounding took from the lse; keys of the tile that a row sees, [low byte, high byte); flags.
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
  __device__ GradientRowFeeder(GradientParameters<T> const& a, GradientMap<C> at, GradientSlots slots, float* rows)
      : a_(a), at_(at), slots_(slots), rows_(rows) {}

  __device__ __forceinline__ void run() {
    Cursor<2> slot;
    while (true) {
      barrier_wait(at_.tile_full(slot.stage), slot.parity);
      GradientTile const tile = slots_.get(slot.stage);
      if (tile.number >= a_.tiles) break;
      GradientSteps<T> step(a_, tile);
      for (int t = 0; t < tile.steps; ++t) {
        if (t > 0) step.advance();
        load(step, step.query() + 2 * lane_now());
      }
      release(at_.tile_empty(slot.stage));
      slot.advance();
    }
  }

 private:
  struct Row {
    float lse = infinity, delta = 0.f, lse_rest = 0.f;
    int keys = gradient_keys << 8;  // a row that does not exist hides nothing: its weights are 0

    __device__ __forceinline__ bool hides_some_of(int group) const {
      return (keys & 255) > 64 * group || keys >> 8 < 64 * group + 64;
    }
  };

  __device__ __forceinline__ Row row_at(GradientSteps<T> const& step, int query) const {
    Row row;
    if (query >= a_.visible.queries) return row;
    int const head = step.batch * a_.query_heads + step.head;
    float const lse = *row_of(a_.lse, head, a_.query_heads, query);
    if (lse != -infinity) {
      double exact = lse;
      if (a_.lse_remainder.data != nullptr) exact += *row_of(a_.lse_remainder, head, a_.query_heads, query);
      exact = exact * 1.4426950408889634 - GradientFactors<T>::log2_of_weight;
      row.lse = static_cast<float>(exact);
      if (isfinite(row.lse)) row.lse_rest = static_cast<float>(exact - row.lse);
    }
    row.delta = *row_of(a_.delta, head, a_.query_heads, query) * GradientFactors<T>::of_ds(a_.softmax_scale);
    int2 const seen = a_.visible.keys_of(step.batch, query);
    int const first = step.key_block * gradient_keys, from = min(max(seen.x - first, 0), gradient_keys);
    row.keys = from | min(max(seen.y - first, 0), gradient_keys) << 8;
    return row;
  }

  __device__ __forceinline__ void load(GradientSteps<T> const& step, int query) {
    Row const even = row_at(step, query), odd = row_at(step, query + 1);
    int flags = 0;
#pragma unroll
    for (int group = 0; group < 2; ++group)
      if (__any_sync(~0u, even.hides_some_of(group) || odd.hides_some_of(group)))
        flags |= GradientRowStage::has_hidden(group);
    constexpr float negligible = 6e-5f;  // of a weight: 2^-14
    if (__any_sync(~0u, fmaxf(fabsf(even.lse_rest), fabsf(odd.lse_rest)) > negligible))
      flags |= GradientRowStage::has_rest;

    barrier_wait(at_.rows_empty(stage_.stage), stage_.parity ^ 1);
    GradientRowStage const to{rows_ + stage_.stage * row_stage_words};
    int const lane = lane_now();
    reinterpret_cast<float2*>(to.lse())[lane] = float2{even.lse, odd.lse};
    reinterpret_cast<float2*>(to.delta())[lane] = float2{even.delta, odd.delta};
    reinterpret_cast<float2*>(to.lse_rest())[lane] = float2{even.lse_rest, odd.lse_rest};
    reinterpret_cast<int*>(to.keys())[lane] = even.keys | odd.keys << 16;
    if (lane == 0) to.flags() = flags;
    barrier_arrive(at_.rows_full(stage_.stage));  // 32 arrivals
    stage_.advance();
  }

  GradientParameters<T> const& a_;
  GradientMap<C> at_;
  GradientSlots slots_;
  float* rows_;
  Cursor<row_stages> stage_;
};

}  // namespace annulus::cuda::detail::hopper
