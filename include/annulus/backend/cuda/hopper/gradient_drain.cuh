#pragma once
// Sums of dq in a fixed order, so that they are the same bits from run to run.
//
// dQ of a step leaves shared memory through the copy engine, which adds it to global memory. Tiles add to every block
// of queries in the order of the blocks of keys: a counter per block of queries says whose turn it is. A thread of its
// own waits for it, so that the warpgroups go on. Tiles are drawn from the queue in that order too, so a tile waits
// only for tiles that are being worked on: there is no deadlock; and all tiles walk through the queries in the same
// direction, each a little behind its predecessor, so there is hardly any waiting either.

#include "annulus/backend/cuda/hopper/gradient_work.cuh"

namespace annulus::cuda::detail::hopper {

/// Two threads: `which` is 0 for the even steps of a thread block, 1 for the odd ones, because from the start of a sum
/// to its successor's permission takes longer than a step.
template <class C, class T>
class GradientDrain {
 public:
  __device__ GradientDrain(GradientParameters<T> const& a, GradientMap<C> at, GradientSlots slots, int which)
      : a_(a), at_(at), slots_(slots), which_(which) {}

  __device__ __forceinline__ void run() {
    Cursor<2> slot;
    int number = 0;  // of the step, of the thread block
    while (true) {
      barrier_wait(at_.tile_full(slot.stage), slot.parity);
      GradientTile const tile = slots_.get(slot.stage);
      if (tile.number >= a_.tiles) break;
      GradientSteps<T> step(a_, tile);
      for (int t = 0; t < tile.steps; ++t, ++number) {
        if (t > 0) step.advance();
        if ((number & 1) == which_) add(step);
        stage_.advance();
      }
      barrier_arrive(at_.tile_empty(slot.stage));
      slot.advance();
    }
    boxes_wait();
  }

 private:
  __device__ __forceinline__ void add(GradientSteps<T> const& step) {
    KeyBlockRange const all = key_blocks_of(a_.visible, step.batch, step.block);
    int const first = max(all.first, a_.first_key_block), last = min(all.last, a_.first_key_block + a_.key_blocks - 1);
    int* const turn = a_.turns + (step.batch * a_.query_heads + step.head) * a_.visible.query_blocks + step.block;
    while (load_acquire(turn) != step.key_block - first) {
    }
    proxy_fence();
    barrier_wait(at_.dq_full(which_), parity_);
    parity_ ^= 1;
    if (a_.opens_queries && step.key_block == all.first)
      store_box(&a_.dq, at_.dq(stage_.stage), step.query(), step.head, step.batch);
    else
      add_box(&a_.dq, at_.dq(stage_.stage), step.query(), step.head, step.batch);
    boxes_commit();
    boxes_wait_read();
    barrier_arrive(at_.dq_empty(stage_.stage));
    boxes_wait();
    proxy_fence();
    store_release(turn, step.key_block == last ? 0 : step.key_block - first + 1);
  }

  GradientParameters<T> const& a_;
  GradientMap<C> at_;
  GradientSlots slots_;
  int which_;
  Cursor<C::dq_stages> stage_;
  std::uint32_t parity_ = 0;
};

}  // namespace annulus::cuda::detail::hopper
