#pragma once
// A computing warpgroup of the backward pass: 64 of the 128 keys of every tile. dK and dV stay in registers.
//
// Everything is computed transposed (keys are rows): S^T = K Q^T and dP^T = V dO^T, so that P^T is, in the registers
// where it arises, the A operand of dV += P^T dO. dS^T goes through shared memory, for dK += dS^T Q (no registers are
// left for it) and for dQ = dS K, to which both warpgroups contribute and of which each computes half of the columns.
//
// The two warpgroups take turns: while one issues dQ(t-2), dV(t-1), dK(t-1), S(t), the other does everything else.
// Measured on an H200 (head_dim 128, 16k full, TFLOP/s): 517 to 524; without turns, with a barrier at dS, 487 to 496;
// staging of dQ with bank conflicts and handed over later 474 to 485.

#include "annulus/backend/cuda/hopper/gradient_rows.cuh"

namespace annulus::cuda::detail::hopper {

template <class C, class T>
class GradientWarpgroup {
 public:
  __device__ GradientWarpgroup(GradientParameters<T> const& a, GradientMap<C> at, GradientSlots slots,
                               unsigned char* memory, int group)
      : a_(a),
        at_(at),
        slots_(slots),
        memory_(memory),
        group_(group),
        warp_(__shfl_sync(~0u, threadIdx.x / 32 & 3, 0)) {}

  __device__ __forceinline__ void run() {
    if (group_ == 1) named_arrive(1, 256);  // the first turn is group 0's
    while (true) {
      barrier_wait(at_.tile_full(slot_.stage), slot_.parity);
      GradientTile const tile = slots_.get(slot_.stage);
      if (tile.number >= a_.tiles) break;
      if (tile.steps > 0 || a_.opens_keys || a_.closes_keys) {
#pragma unroll
        for (int i = 0; i < C::head_dim / 2; ++i) dk_[i] = 0.f;
#pragma unroll
        for (int i = 0; i < C::value_dim / 2; ++i) dv_[i] = 0.f;
        if (tile.steps > 0) add_steps(tile.steps);
        write_keys();
      }
      release(at_.tile_empty(slot_.stage));
      slot_.advance();
    }
  }

 private:
  // dQ is a step late because it needs dS of both warpgroups; in the first iteration it is of no use. Nothing is
  // unfinished where the loop turns: the compiler follows registers of unfinished products only within an iteration.
  __device__ __forceinline__ void add_steps(int steps) {
    first_step();
    for (int t = 1; t < steps; ++t) next_step(t > 1);
    last_products(steps > 1);
  }

  __device__ __forceinline__ void first_step() {
    float s[32], dp[32];
    barrier_wait(at_.kv_full(), kv_parity_);
    kv_parity_ ^= 1;
    barrier_wait(at_.q_full(q_.stage), q_.parity);
    issue_transposed<C::head_dim>(s, at_.k(), at_.q(q_.stage));
    barrier_wait(at_.o_full(o_.stage), o_.parity);
    issue_transposed<C::value_dim>(dp, at_.v(), at_.o(o_.stage));
    products_wait<1>();  // S
    weigh(s);
    products_wait<0>();
    differentiate(s, dp);
    round(s);
  }

  __device__ __forceinline__ void next_step(bool has_dq) {
    float s[32], dp[32], dq[C::dq_columns / 2];
    Cursor<C::q_stages> const q_next = q_.next();
    barrier_wait(at_.q_full(q_next.stage), q_next.parity);
    await_turn();
    issue_dq(dq, ds_before_.stage);
    issue_dv();
    issue_dk();
    issue_transposed<C::head_dim>(s, at_.k(), at_.q(q_next.stage));
    pass_turn();
    products_wait<3>();  // dQ
    if (has_dq) hand_over_dq(dq);
    Cursor<C::o_stages> const o_next = o_.next();
    barrier_wait(at_.o_full(o_next.stage), o_next.parity);
    issue_transposed<C::value_dim>(dp, at_.v(), at_.o(o_next.stage));
    products_wait<1>();  // dV, dK, S
    pin(dv_);
    pin(dk_);
    pin(p_);
    release(at_.o_empty(o_.stage));
    release(at_.q_empty(q_.stage));
    o_ = o_next;
    q_ = q_next;
    ds_before_ = ds_;
    ds_.advance();
    weigh(s);
    products_wait<0>();  // dP
    differentiate(s, dp);
    round(s);
  }

  __device__ __forceinline__ void last_products(bool has_dq) {
    float dq[C::dq_columns / 2];
    await_turn();
    issue_dq(dq, ds_before_.stage);
    issue_dv();
    issue_dk();
    pass_turn();
    products_wait<2>();  // dQ
    if (has_dq) hand_over_dq(dq);
    products_wait<0>();
    pin(dv_);
    pin(dk_);
    pin(p_);
    release(at_.o_empty(o_.stage));
    release(at_.q_empty(q_.stage));
    o_.advance();
    q_.advance();
    await_turn();
    issue_dq(dq, ds_.stage);
    pass_turn();
    products_wait<0>();
    hand_over_dq(dq);
    release(at_.kv_empty());
    ds_before_ = ds_;
    ds_.advance();
  }

  /// [64 x 64] = rows of K or V times a block of Q or dO, transposed.
  template <int Columns>
  __device__ __forceinline__ void issue_transposed(float (&d)[32], std::uint32_t keys_at, std::uint32_t queries_at) {
    std::uint64_t const ad = tile_descriptor(keys_at + group_ * (64 * 128), 16), bd = tile_descriptor(queries_at, 16);
    products_fence();
#pragma unroll
    for (int step = 0; step < Columns / 16; ++step)
      multiply<T, Major::k>(d, ad + columns_step(step, C::keys), bd + columns_step(step, C::queries), step > 0);
    products_commit();
  }
  __device__ __forceinline__ void issue_dv() {  // dV [64 keys x value_dim] += P^T [64 x 64] dO, P^T from registers
    std::uint64_t const bd = tile_descriptor(at_.o(o_.stage), C::queries * 128);
    pin(p_);
    products_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) multiply<T, Major::mn>(dv_, p_ + 4 * step, bd + rows_step(step), 1);
    products_commit();
  }
  __device__ __forceinline__ void issue_dk() {  // dK [64 keys x head_dim] += dS^T [64 x 64] Q, dS^T from shared memory
    std::uint64_t const ad = tile_descriptor(at_.ds(ds_.stage) + group_ * (64 * 128), 16);
    std::uint64_t const bd = tile_descriptor(at_.q(q_.stage), C::queries * 128);
    products_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
      multiply<T, Major::mn>(dk_, ad + columns_step(step, C::queries), bd + rows_step(step), 1);
    products_commit();
  }
  __device__ __forceinline__ void issue_dq(float (&dq)[C::dq_columns / 2],
                                           int stage) {  // dQ [64 x dq_columns] = dS [64 x 128] K
    constexpr int half = C::dq_columns == panel_columns ? C::keys * 128 : C::dq_columns * 2;
    std::uint64_t const ad = tile_descriptor(at_.ds(stage), 16);
    std::uint64_t const bd = tile_descriptor(at_.k() + group_ * half, C::keys * 128);
    products_fence();
#pragma unroll
    for (int step = 0; step < C::keys / 16; ++step)
      multiply<T, Major::mn, Major::mn>(dq, ad + rows_step(step), bd + rows_step(step), step > 0);
    products_commit();
  }

  /// S^T becomes P^T.
  __device__ __forceinline__ void weigh(float (&s)[32]) {
    pin(s);
    barrier_wait(at_.rows_full(rows_.stage), rows_.parity);
    GradientRowStage const rows = row_numbers();
    int const flags = rows.flags();
    float const* const lse = rows.lse() + place().column;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float2 const of = *reinterpret_cast<float2 const*>(lse + 8 * j);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        s[4 * j + 2 * r] = exp2_fast(__fmaf_rn(s[4 * j + 2 * r], a_.logits_to_log2, -of.x));
        s[4 * j + 2 * r + 1] = exp2_fast(__fmaf_rn(s[4 * j + 2 * r + 1], a_.logits_to_log2, -of.y));
      }
    }
    if (flags & GradientRowStage::has_rest) [[unlikely]]
      correct(rows, s);
    if (flags & GradientRowStage::has_hidden(group_)) hide(rows, s);
    pin(s);
    // Never true: a store that depends on them keeps the wait for dP^T, which follows, behind the exponentials. A trap
    // in its place made the compiler serialize all products.
    if (s[31] < 0.f) *static_cast<float volatile*>(rows.lse()) = s[31];
  }
  /// What rounding took from the lse.
  __device__ __forceinline__ void correct(GradientRowStage const& rows, float (&s)[32]) {
    float const* const rest = rows.lse_rest() + place().column;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      float2 const of = *reinterpret_cast<float2 const*>(rest + 8 * j);
#pragma unroll
      for (int i = 0; i < 4; ++i) s[4 * j + i] *= exp2_fast(i & 1 ? -of.y : -of.x);
    }
  }
  /// Weights of hidden pairs become 0.
  __device__ __forceinline__ void hide(GradientRowStage const& rows, float (&s)[32]) {
    Place const at = place();
    int const* const keys = reinterpret_cast<int const*>(rows.keys() + at.column);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      int const seen = keys[4 * j];
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // row 8 (i / 2) further, query i % 2
        int const key = group_ * 64 + at.row + 8 * (i / 2), from = seen >> 16 * (i & 1) & 255;
        int const to = seen >> (16 * (i & 1) + 8) & 255;
        if (key < from || key >= to) s[4 * j + i] = 0.f;
      }
    }
  }
  __device__ __forceinline__ void round(float const (&s)[32]) {
#pragma unroll
    for (int m = 0; m < 16; ++m) p_[m] = packed<T>(s[2 * m], s[2 * m + 1]);
  }

  /// dS^T from P^T and dP^T, to shared memory [128 keys][64 queries], into a stage that nobody reads any more: when
  /// this warpgroup handed over its last dQ, the staging of that dQ was free again, so both warpgroups had long handed
  /// over the dQ that read the stage. Hence dq_stages + 2 of them.
  __device__ __forceinline__ void differentiate(float const (&s)[32], float (&dp)[32]) {
    pin(dp);
    if (row_numbers().flags() & GradientRowStage::has_hidden(group_)) forget_hidden(s, dp);
    float const* const numbers = row_numbers().delta() + place().column;
    float const factor = GradientFactors<T>::of_ds(a_.softmax_scale);
    int const lane = lane_now();
    std::uint32_t const line =
        at_.ds(ds_.stage) + (group_ * 64 + warp_ * 16 + (lane & 15)) * 128 + (((lane / 16) ^ (lane & 7)) << 4);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      std::uint32_t words[4];
#pragma unroll
      for (int j = 2 * m; j < 2 * m + 2; ++j) {
        float2 const delta = *reinterpret_cast<float2 const*>(numbers + 8 * j);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          int const x = 4 * j + 2 * r;
          words[2 * (j & 1) + r] =
              packed<T>(s[x] * __fmaf_rn(dp[x], factor, -delta.x), s[x + 1] * __fmaf_rn(dp[x + 1], factor, -delta.y));
        }
      }
      store_matrices(line ^ (m << 5), words);
    }
    release(at_.rows_empty(rows_.stage));
    rows_.advance();
    shared_writes_fence();  // the barrier that follows is that of the turn
  }

  /// dP of hidden pairs, which may not be finite, becomes 0.
  static __device__ __forceinline__ void forget_hidden(float const (&s)[32], float (&dp)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      if (s[i] == 0.f) dp[i] = 0.f;
  }

  /// To [head_dim / 32][queries][32], where chunks of 16 bytes are swizzled like everywhere.
  __device__ __forceinline__ void hand_over_dq(float (&dq)[C::dq_columns / 2]) {
    pin(dq);
    barrier_wait(at_.dq_empty(dq_stage_.stage), dq_stage_.parity ^ 1);
    auto const [lane, row, first_column] = place();
    // Rows 2n and 2n + 1 would hit the same banks, so odd rows store columns in another order: 16..31 before 0..15.
    bool const odd = lane & 4;
#pragma unroll
    for (int j = 0; j < C::dq_columns / 8; ++j)
      if (j % 4 < 2)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float const x = dq[4 * j + e], y = dq[4 * j + 8 + e];
          dq[4 * j + e] = odd ? y : x;
          dq[4 * j + 8 + e] = odd ? x : y;
        }
    float const factor = GradientFactors<T>::is_half ? a_.softmax_scale : 1.f;
    unsigned char* const lines = memory_ + C::dq_at + dq_stage_.stage * C::dq_bytes + row * 128 + 8 * (lane & 1);
    int const chunk = ((lane & 3) / 2) ^ (lane / 4) ^ (lane & 4);
#pragma unroll
    for (int j = 0; j < C::dq_columns / 8; ++j) {
      int const panel = (group_ * C::dq_columns + 8 * j) / 32;
      unsigned char* const to = lines + panel * (C::queries * 128) + ((2 * (j % 4)) ^ chunk) * 16;
      *reinterpret_cast<float2*>(to) = float2{dq[4 * j] * factor, dq[4 * j + 1] * factor};
      *reinterpret_cast<float2*>(to + 8 * 128) = float2{dq[4 * j + 2] * factor, dq[4 * j + 3] * factor};
    }
    shared_writes_fence();
    release(at_.dq_full(step_parity_));
    step_parity_ ^= 1;
    dq_stage_.advance();
  }

  __device__ __forceinline__ void write_keys() {
    GradientTile const tile = slots_.get(slot_.stage);
    float const dk_factor = GradientFactors<T>::is_half ? a_.softmax_scale : 1.f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      int const key = tile.key_block * C::keys + group_ * 64 + place().row + 8 * r;
      write_row(dk_, r, tile.kv_head, key, dk_factor, a_.dk, a_.dk_result);
      write_row(dv_, r, tile.kv_head, key, GradientFactors<T>::of_dv, a_.dv, a_.dv_result);
    }
  }
  template <int Count>
  __device__ __forceinline__ void write_row(float (&d)[Count], int r, int kv_head, int key, float factor,
                                            StridedRows<float> const& sums, StridedRows<T> const& results) {
    bool const exists = key < a_.visible.keys;
    float* const line = row_of(sums, kv_head, a_.kv_heads, key) + place().column;
#pragma unroll
    for (int j = 0; j < Count / 4; ++j) {
      float2 sum{d[4 * j + 2 * r] * factor, d[4 * j + 2 * r + 1] * factor};
      if (!a_.opens_keys && exists) {
        float2 const before = *reinterpret_cast<float2 const*>(line + 8 * j);
        sum = {sum.x + before.x, sum.y + before.y};
      }
      d[4 * j + 2 * r] = sum.x;
      d[4 * j + 2 * r + 1] = sum.y;
      if (!a_.closes_keys && exists) *reinterpret_cast<float2*>(line + 8 * j) = sum;
    }
    if (a_.closes_keys) write_rounded(row_of(results, kv_head, a_.kv_heads, key), d, r, 1.f, exists, lane_now());
  }

  // A thread holds of every product [64 x N] the rows row and row + 8 and the columns 8j + column, + 1.
  struct Place {
    int lane, row, column;
  };
  __device__ __forceinline__ Place place() const {  // not kept: registers are scarce
    int const lane = lane_now();
    return {lane, warp_ * 16 + lane / 4, 2 * (lane & 3)};
  }
  __device__ __forceinline__ GradientRowStage row_numbers() const {
    return {reinterpret_cast<float*>(memory_ + C::rows_at) + rows_.stage * row_stage_words};
  }
  __device__ __forceinline__ void await_turn() { named_sync(1 + group_, 256); }
  __device__ __forceinline__ void pass_turn() { named_arrive(2 - group_, 256); }

  GradientParameters<T> const& a_;
  GradientMap<C> at_;
  GradientSlots slots_;
  unsigned char* memory_;
  int group_, warp_;

  float dk_[C::head_dim / 2], dv_[C::value_dim / 2];  // [64 keys x head_dim], [64 keys x value_dim]
  std::uint32_t p_[16];                               // P^T as A operand

  Cursor<C::q_stages> q_;
  Cursor<C::o_stages> o_;
  Cursor<row_stages> rows_;
  Cursor<2> slot_;
  Cursor<C::dq_stages> dq_stage_;
  Cursor<C::ds_stages> ds_, ds_before_;  // of this step and of the one before
  std::uint32_t kv_parity_ = 0, step_parity_ = 0;
};

}  // namespace annulus::cuda::detail::hopper
