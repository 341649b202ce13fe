#pragma once
// A computing warpgroup of the forward pass: 64 queries of every tile. Per block of keys S = Q K^T, P = 2^(S c -
// reference), O += P V, with O, S and P in registers (FlashAttention-3, Shah et al. 2024, for the pipeline).
//
// Two ideas keep the tensor cores busy:
//  overlap  a warpgroup issues S(n+1) = Q K(n+1)^T before O += P(n) V(n), and computes softmax while the latter runs;
//  turns    warpgroups issue products in a fixed rotation, so that one computes softmax under the other's products.
// Measured on an H200 (16k, causal / full, TFLOP/s, head_dim 128): with both 653 / 672, without turns 593 / 596, and in
// an earlier version 635 / 656 with both and 596 / 632 without overlap.

#include "annulus/backend/cuda/hopper/fold_results.cuh"
#include "annulus/backend/cuda/hopper/fold_softmax.cuh"
#include "annulus/backend/cuda/hopper/fold_visible_values.cuh"

namespace annulus::cuda::detail::hopper {

template <class C, class T, bool opens, bool closes>
class FoldWarpgroup {
 public:
  __device__ FoldWarpgroup(FoldParameters<T> const& a, FoldMap<C> at, TileSlots<C> slots, int volatile* alarms,
                           int group)
      : a_(a), at_(at), slots_(slots), alarms_(alarms + 2 * group), group_(group) {}

  __device__ __forceinline__ void run() {
    if (group_ == C::groups - 1) named_arrive(1, 256);  // the first turn is group 0's
    while (true) {
      barrier_wait(at_.tile_full(slot_.stage()), slot_.parity());
      if (slots_.number(slot_.stage()) >= a_.tiles) break;
      run_tile();
      release(at_.tile_empty(slot_.stage()));
      slot_.advance();
    }
  }

 private:
  using Results = FoldResults<C, T, opens, closes>;
  static constexpr int keys = C::keys;

  __device__ __forceinline__ void run_tile() {
    int const begin = slots_.begin(slot_.stage()), end = slots_.end(slot_.stage());
    KeyBlocks const mine = blocks();
    bool const sees = mine.begin < mine.end;
    Results const results(a_, slots_.head(slot_.stage()), row());
    // Arrives while the first product runs. Without keys, a state that stays one is not touched.
    if (sees || opens || closes) results.begin(o_, softmax_.reference, softmax_.sum);
    if (begin < end) load_queries();
    for (int n = end; n > mine.end; --n) skip();
    if (sees) fold_blocks(mine);
    if constexpr (!C::queries_in_registers)
      if (begin < end) release_queries();
    if (sees) finish_values();
    for (int n = blocks().begin; n > slots_.begin(slot_.stage()); --n) skip();
    // Of head and row read again, rather than kept in registers.
    if (sees || opens || closes)
      Results(a_, slots_.head(slot_.stage()), row()).write(o_, softmax_.reference, softmax_.sum);
  }

  /// Blocks of keys that the rows of the warpgroup see. If there are none, all are skipped.
  __device__ __forceinline__ KeyBlocks blocks() const {
    KeyBlocks mine = slots_.group(slot_.stage(), group_);
    if (mine.begin >= mine.end) mine.begin = mine.end = slots_.begin(slot_.stage());
    return mine;
  }
  /// The thread's first row.
  __device__ __forceinline__ int row() const {
    int const warp = threadIdx.x / 32 & 3;
    return slots_.query(slot_.stage()) + bounded_rows * group_ + warp * 16 + lane_now() / 4;
  }

  // Last blocks first. Care is needed at the upper edge of what is visible and in the first block that all rows see
  // whole, where the last rows may get their reference; then again at the lower edge.
  __device__ __forceinline__ void fold_blocks(KeyBlocks const& mine) {
    int n = mine.end - 1;
    first_block(n--);
    for (int const to = max(mine.full_end - 1, mine.begin); n >= to; --n) next_block<true>(n);
    for (int const to = max(mine.full_begin, mine.begin); n >= to; --n) next_block<false>(n);
    for (int const to = blocks().begin; n >= to; --n) next_block<true>(n);
    if constexpr (C::late_alarm) {
      named_sync(barrier_of_group(), 128);
      settle();
      release_k();
    }
  }

  __device__ __forceinline__ void first_block(int block) {  // S alone
    barrier_wait(at_.k_full(k_.stage), k_.parity);
    await_turn();
    issue_logits(k_.stage);
    pass_turn();
    products_wait<0>();
    pin(softmax_.s);
    if constexpr (!C::late_alarm) release_k();
    if (weigh_carefully(block) && !opens) shrink_output();
    softmax_.round();
  }

  // S of this block, over O += P V of the one before. With a late alarm, K of the one before is still held here.
  template <bool careful>
  __device__ __forceinline__ void next_block(int block) {
    Cursor<C::k_stages> const here = C::late_alarm ? k_.next() : k_;
    barrier_wait(at_.k_full(here.stage), here.parity);
    await_turn();
    if constexpr (C::late_alarm) settle();
    pin(softmax_.p);
    issue_logits(here.stage);
    barrier_wait(at_.v_full(v_.stage), v_.parity);
    issue_values();
    pass_turn();
    if constexpr (C::late_alarm) release_k();
    products_wait<1>();
    pin(softmax_.s);
    bool const raised = weigh_block<careful>(block);
    products_wait<0>();
    pin(o_);
    pin(softmax_.p);
    release_v();
    if (raised) shrink_output();
    softmax_.round();
  }

  __device__ __forceinline__ void issue_logits(int stage) {  // S = Q K^T
    products_fence();
    std::uint64_t const kd = tile_descriptor(at_.k(stage), 16), qd = tile_descriptor(at_.q(group_), 16);
#pragma unroll
    for (int step = 0; step < C::head_dim / 16; ++step) {
      std::uint64_t const b = kd + columns_step(step, keys);
      if constexpr (C::queries_in_registers)
        multiply<T, Major::k>(softmax_.s, q_ + 4 * step, b, step > 0);
      else
        multiply<T, Major::k>(softmax_.s, qd + columns_step(step, bounded_rows), b, step > 0);
    }
    products_commit();
  }
  __device__ __forceinline__ void issue_values() {  // O += P V
    products_fence();
    std::uint64_t const vd = tile_descriptor(at_.v(v_.stage), keys * 128);
#pragma unroll
    for (int step = 0; step < keys / 16; ++step)
      multiply<T, Major::mn>(o_, softmax_.p + 4 * step, vd + rows_step(step), 1);
    products_commit();
  }
  /// The last product.
  __device__ __forceinline__ void finish_values() {
    barrier_wait(at_.v_full(v_.stage), v_.parity);
    pin(softmax_.p);
    issue_values();
    products_wait<0>();
    pin(o_);
    release_v();
    KeyBlocks const mine = blocks();
    VisibleValues<C, T, Results>(a_, slots_.head(slot_.stage()), row())
        .repair(mine.begin * keys, min(mine.end * keys, a_.visible.keys), softmax_.reference, softmax_.sum, o_);
  }

  /// S to weights. True if O has to be shrunk. Without a late alarm, gives K back as soon as it can.
  template <bool careful>
  __device__ __forceinline__ bool weigh_block(int block) {
    if constexpr (careful) {
      if constexpr (!C::late_alarm) release_k();
      return weigh_carefully(block);
    } else if constexpr (C::late_alarm) {
      weigh_and_flag();
      return false;
    } else {
      bool const raised = weigh();
      release_k();
      return raised;
    }
  }
  /// For blocks in which pairs may be hidden or rows have no reference. True if O has to be shrunk.
  __device__ __forceinline__ bool weigh_carefully(int block) {
    softmax_.take_sign(a_.logits_to_log2);
    KeyBlocks const mine = blocks();
    if (block >= mine.full_end || block < mine.full_begin) {
      int const batch = a_.visible.ranges == nullptr ? 0 : slots_.head(slot_.stage()) / a_.query_heads;
      softmax_.hide(a_.visible, batch, row(), block * keys);
    }
    return softmax_.weigh_with_maximum(fabsf(a_.logits_to_log2), alarms_);
  }
  /// Computes the logits of the block again, whose keys are still held, and raises the references.
  __device__ __forceinline__ bool weigh_again() {
    issue_logits(k_.stage);
    products_wait<0>();
    pin(softmax_.s);
    softmax_.take_sign(a_.logits_to_log2);
    return softmax_.weigh_with_maximum(fabsf(a_.logits_to_log2), alarms_);
  }
  /// For blocks of which all rows see every key and have a reference.
  __device__ __forceinline__ bool weigh() {
    float block_sum[2];
    softmax_.template exponentiate<false>(a_.logits_to_log2, block_sum);
    // All four warps must agree, because a product takes all four. The branch has a second use: without it the compiler
    // moves the wait for O += P V, which follows, up to before the exponentials, and nothing overlaps any more.
    if (named_any(barrier_of_group(), 128, !are_good(block_sum))) [[unlikely]]
      return weigh_again();
    softmax_.sum[0] += block_sum[0];
    softmax_.sum[1] += block_sum[1];
    return false;
  }
  /// The same with a late alarm: the sums are added, or the block is weighed again, by settle() in the next turn.
  __device__ __forceinline__ void weigh_and_flag() {
    softmax_.template exponentiate<false>(a_.logits_to_log2, unsettled_);
    if (!are_good(unsettled_)) [[unlikely]]
      alarms_[alarm_] = 1;
  }
  /// Behind a barrier of the warpgroup.
  __device__ __forceinline__ void settle() {
    bool const alarm = alarms_[alarm_] != 0;
    if (alarm) [[unlikely]] {
      named_sync(barrier_of_group(), 128);  // all have seen it
      if ((threadIdx.x & 127) == 0) alarms_[alarm_] = 0;
      if (weigh_again()) shrink_output();
      softmax_.round();
    } else {
      softmax_.sum[0] += unsettled_[0];
      softmax_.sum[1] += unsettled_[1];
    }
    unsettled_[0] = unsettled_[1] = 0.f;
    alarm_ ^= 1;  // of two, so that a warp that is ahead raises another one than a warp behind it reads
  }
  static __device__ __forceinline__ bool are_good(float const (&sums)[2]) {  // false for NaN
    return sums[0] < FoldSoftmax<C, T>::largest_sum && sums[1] < FoldSoftmax<C, T>::largest_sum;
  }

  __device__ __forceinline__ void shrink_output() {
#pragma unroll
    for (int i = 0; i < C::value_dim / 2; ++i) o_[i] *= softmax_.shrink[(i / 2) & 1];
  }

  __device__ __forceinline__ void load_queries() {
    barrier_wait(at_.q_full(group_), q_parity_);
    if constexpr (C::queries_in_registers) {
      int const lane = lane_now(), warp = threadIdx.x / 32 & 3;
      std::uint32_t const line = at_.q(group_) + (warp * 16 + (lane & 15)) * 128;
#pragma unroll
      for (int step = 0; step < C::head_dim / 16; ++step) {
        std::uint32_t const panel = line + (step / 4) * (bounded_rows * 128);
        std::uint32_t words[4];
        load_matrices(panel + ((((step % 4) * 2 + lane / 16) ^ (lane & 7)) << 4), words);
#pragma unroll
        for (int i = 0; i < 4; ++i) q_[4 * step + i] = words[i];
      }
      release_queries();
    }
  }
  __device__ __forceinline__ void release_queries() {
    release(at_.q_empty(group_));
    q_parity_ ^= 1;
  }
  __device__ __forceinline__ void release_k() {
    release(at_.k_empty(k_.stage));
    k_.advance();
  }
  __device__ __forceinline__ void release_v() {
    release(at_.v_empty(v_.stage));
    v_.advance();
  }
  /// A block that other warpgroups of the tile need.
  __device__ __forceinline__ void skip() {
    barrier_wait(at_.k_full(k_.stage), k_.parity);
    await_turn();
    pass_turn();
    release_k();
    barrier_wait(at_.v_full(v_.stage), v_.parity);
    release_v();
  }

  __device__ __forceinline__ void await_turn() { named_sync(1 + group_, 256); }
  __device__ __forceinline__ void pass_turn() { named_arrive(1 + (group_ + 1 == C::groups ? 0 : group_ + 1), 256); }
  __device__ __forceinline__ int barrier_of_group() const { return 1 + C::groups + group_; }

  FoldParameters<T> const& a_;
  FoldMap<C> at_;
  TileSlots<C> slots_;
  int volatile* alarms_;  // two flags, which a late alarm uses
  int group_;

  float o_[C::value_dim / 2];
  FoldSoftmax<C, T> softmax_;
  std::uint32_t q_[C::queries_in_registers ? C::head_dim / 4 : 4];

  Cursor<C::k_stages> k_;
  Cursor<C::v_stages> v_;
  SlotCursor slot_;
  std::uint32_t q_parity_ = 0;
  float unsettled_[2] = {0.f, 0.f};  // late alarm: row sums of the block before
  int alarm_ = 0;                    // late alarm: which of the two flags
};

}  // namespace annulus::cuda::detail::hopper
