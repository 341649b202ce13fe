#pragma once
// A step of the backward pass on Hopper: adds the gradients that the keys and all queries of a step owe each other to
// fp32 sums, in a fixed order (FlashAttention-2, Dao 2023, for the recomputation of P).
//
//   P = exp((q.k scale - lse) - lse_remainder), dS = P (dout.v - delta) scale;
//   dv += P^T dout, dk += dS^T q, dq += dS k.
//
// A thread block takes tiles (kv head, 128 keys): K and V stay in shared memory, dK and dV in the registers of two
// warpgroups of 64 keys each (gradient_warpgroup.cuh), and the queries of all heads of the group stream past, 64 at a
// time. The first warpgroup feeds (gradient_feed.cuh, gradient_rows.cuh) and adds dQ to memory (gradient_drain.cuh).

#include "annulus/backend/cuda/hopper/gradient_drain.cuh"
#include "annulus/backend/cuda/hopper/gradient_feed.cuh"
#include "annulus/backend/cuda/hopper/gradient_warpgroup.cuh"

namespace annulus::cuda::detail::hopper {

template <class C>
__device__ __forceinline__ void init_gradient_barriers(GradientMap<C> at) {
  barrier_init(at.kv_full(), 1);
  barrier_init(at.kv_empty(), 8);
  for (int slot = 0; slot < 2; ++slot) {
    barrier_init(at.dq_full(slot), 8);
    barrier_init(at.dq_empty(slot), 1);
    barrier_init(at.tile_full(slot), 1);
    barrier_init(at.tile_empty(slot), 11);  // 8 computing warps, the one for rows, two threads for dQ
  }
  for (int stage = 0; stage < row_stages; ++stage) {
    barrier_init(at.rows_full(stage), 32);
    barrier_init(at.rows_empty(stage), 8);
  }
  for (int stage = 0; stage < C::q_stages; ++stage) {
    barrier_init(at.q_full(stage), 1);
    barrier_init(at.q_empty(stage), 8);
  }
  for (int stage = 0; stage < C::o_stages; ++stage) {
    barrier_init(at.o_full(stage), 1);
    barrier_init(at.o_empty(stage), 8);
  }
  barrier_init_fence();
}

template <class C, class T>
__global__ void __launch_bounds__(C::threads, 1) gradient_kernel(__grid_constant__ GradientParameters<T> const a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  GradientMap<C> const at{shared_address(memory)};
  GradientSlots const slots{reinterpret_cast<int volatile*>(memory + C::slots_at)};

  if (threadIdx.x == 0) {
    prefetch_map(&a.q);
    prefetch_map(&a.k);
    prefetch_map(&a.v);
    prefetch_map(&a.dout);
    prefetch_map(&a.dq);
    init_gradient_barriers(at);
  }
  __syncthreads();
  await_earlier_kernel();
  if (a.visible.left_to_others()) return;

  int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  bool const first_lane = (threadIdx.x & 31) == 0;
  if (warp < 4) {
    registers_give_back<C::feeder_registers>();
    if (warp == 0) {
      if (first_lane) GradientFeeder<C, T>(a, at, slots).run();
    } else if (warp == 1) {
      GradientRowFeeder<C, T>(a, at, slots, memory).run();
    } else {
      if (first_lane) GradientDrain<C, T>(a, at, slots, warp - 2).run();
    }
  } else {
    registers_take<C::computing_registers>();
    GradientWarpgroup<C, T>(a, at, slots, memory, warp / 4 - 1).run();
  }
}

}  // namespace annulus::cuda::detail::hopper
