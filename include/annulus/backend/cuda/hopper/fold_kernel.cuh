#pragma once
// One forward step of exact attention on Hopper: folds keys and values into the running states of all queries.
//
// A thread block owns one multiprocessor and takes (head, 64 * groups queries) tiles from a queue, longest first. Its
// first warpgroup feeds shared memory (fold_feed.cuh); each of the others computes 64 queries (fold_warpgroup.cuh). A
// step that opens starts from empty states, one that closes writes the results; both at once is plain flash attention.

#include "annulus/backend/cuda/hopper/fold_feed.cuh"
#include "annulus/backend/cuda/hopper/fold_warpgroup.cuh"

namespace annulus::cuda::detail::hopper {

template <class C>
__device__ __forceinline__ void init_fold_barriers(FoldMap<C> at, bool fetches_state) {
  for (int group = 0; group < C::groups; ++group) {
    barrier_init(at.q_full(group), 1);
    barrier_init(at.q_empty(group), 4);
  }
  for (int stage = 0; stage < C::k_stages; ++stage) {
    barrier_init(at.k_full(stage), 1);
    barrier_init(at.k_empty(stage), 4 * C::groups);
  }
  for (int stage = 0; stage < C::v_stages; ++stage) {
    barrier_init(at.v_full(stage), 1);
    barrier_init(at.v_empty(stage), 4 * C::groups);
  }
  for (int slot = 0; slot < C::tile_slots; ++slot) {
    barrier_init(at.tile_full(slot), 1);
    barrier_init(at.tile_empty(slot), 4 * C::groups + (fetches_state ? 1 : 0));
  }
  barrier_init_fence();
}

template <class C, class T, bool opens, bool closes>
__global__ void __launch_bounds__(C::threads, 1) fold_kernel(__grid_constant__ FoldParameters<T> const a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  FoldMap<C> const at{shared_address(memory)};
  TileSlots<C> const slots{reinterpret_cast<int volatile*>(memory + C::slots_at)};
  int volatile* const alarms = reinterpret_cast<int volatile*>(memory + C::alarms_at);

  if (threadIdx.x == 0) {
    prefetch_map(&a.q);
    prefetch_map(&a.k);
    prefetch_map(&a.v);
    init_fold_barriers(at, !opens);
  }
  if (threadIdx.x < 2 * C::groups) alarms[threadIdx.x] = 0;
  __syncthreads();
  await_earlier_kernel();
  if (a.visible.left_to_others()) return;

  int const warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    registers_give_back<C::feeder_registers>();
    if (threadIdx.x == 0)
      FoldFeeder<C, T>(a, at, slots).run();
    else if (!opens && threadIdx.x / 32 == 1)
      fetch_state<C, T>(a, at, slots);
  } else {
    registers_take<C::computing_registers>();
    FoldWarpgroup<C, T, opens, closes>(a, at, slots, alarms, warpgroup - 1).run();
  }
}

}  // namespace annulus::cuda::detail::hopper
