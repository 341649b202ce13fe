#pragma once
// Feeding a backward kernel: one thread draws tiles and has operands copied to shared memory.

#include "annulus/backend/cuda/hopper/gradient_work.cuh"

namespace annulus::cuda::detail::hopper {

template <class C, class T>
class GradientFeeder {
 public:
  __device__ GradientFeeder(GradientParameters<T> const& a, GradientMap<C> at, GradientSlots slots)
      : a_(a), at_(at), slots_(slots) {}

  __device__ __forceinline__ void run() {
    while (true) {
      int const number = draw();
      barrier_wait(at_.tile_empty(slot_.stage), slot_.parity ^ 1);
      GradientTile tile{number, 0, 0, 0, 0, 0};
      if (number < a_.tiles) tile = gradient_tile(a_, number);
      slots_.put(slot_.stage, tile);
      barrier_arrive(at_.tile_full(slot_.stage));
      slot_.advance();
      if (number >= a_.tiles) break;
      load(tile);
    }
    allow_later_kernel();
  }

 private:
  // Also the first tile is drawn: were it blockIdx.x, tiles would wait for a block that has found no multiprocessor
  // yet, which happens when kernels of two streams meet. Every block draws one number that is no tile; the last draw
  // resets the queue.
  __device__ __forceinline__ int draw() {
    int const drawn = atomicAdd(a_.queue, 1);
    if (drawn == a_.tiles + static_cast<int>(gridDim.x) - 1) *a_.queue = 0;
    return drawn;
  }

  __device__ __forceinline__ void load(GradientTile const& tile) {
    GradientSteps<T> step(a_, tile);
    for (int t = 0; t < tile.steps; ++t) {
      if (t > 0) step.advance();
      barrier_wait(at_.q_empty(q_.stage), q_.parity ^ 1);
      barrier_arrive_expect(at_.q_full(q_.stage), C::q_bytes);
      copy_rows<C::head_dim, C::queries>(at_.q(q_.stage), a_.q, at_.q_full(q_.stage),
                                         {0, step.query(), step.head, step.batch}, CachePolicy::evict_last);
      q_.advance();
      if (t == 0) load_keys({0, tile.key_block * C::keys, step.head / a_.group, step.batch});
      barrier_wait(at_.o_empty(o_.stage), o_.parity ^ 1);
      barrier_arrive_expect(at_.o_full(o_.stage), C::o_bytes);
      copy_rows<C::value_dim, C::queries>(at_.o(o_.stage), a_.dout, at_.o_full(o_.stage),
                                          {0, step.query(), step.head, step.batch}, CachePolicy::evict_last);
      o_.advance();
    }
  }
  __device__ __forceinline__ void load_keys(BoxPlace const& place) {
    barrier_wait(at_.kv_empty(), kv_parity_ ^ 1);
    kv_parity_ ^= 1;
    barrier_arrive_expect(at_.kv_full(), C::k_bytes + C::v_bytes);
    copy_rows<C::head_dim, C::keys>(at_.k(), a_.k, at_.kv_full(), place, CachePolicy::evict_first);
    copy_rows<C::value_dim, C::keys>(at_.v(), a_.v, at_.kv_full(), place, CachePolicy::evict_first);
  }
  template <int Columns, int Rows>
  static __device__ __forceinline__ void copy_rows(std::uint32_t to, CUtensorMap const& map, std::uint32_t barrier,
                                                   BoxPlace place, CachePolicy policy) {
    for (int panel = 0; panel < panels_of(Columns); ++panel) {
      place.column = panel * panel_columns;
      copy_box(to + panel * (Rows * 128), &map, barrier, place, policy);
    }
  }

  GradientParameters<T> const& a_;
  GradientMap<C> at_;
  GradientSlots slots_;
  Cursor<C::q_stages> q_;
  Cursor<C::o_stages> o_;
  Cursor<2> slot_;
  std::uint32_t kv_parity_ = 0;
};

}  // namespace annulus::cuda::detail::hopper
