#pragma once
// The warps of a forward kernel that compute nothing: one thread draws tiles and has operands copied to shared memory,
// one warp has the running state brought to the L2.

#include "annulus/backend/cuda/hopper/fold_work.cuh"

namespace annulus::cuda::detail::hopper {

/// One thread: takes tiles from the queue, tells the others, and copies Q, K and V as room becomes free.
template <class C, class T>
class FoldFeeder {
 public:
  __device__ FoldFeeder(FoldParameters<T> const& a, FoldMap<C> at, TileSlots<C> slots)
      : a_(a), at_(at), slots_(slots) {}

  __device__ __forceinline__ void run() {
    int tile = blockIdx.x;
    while (true) {
      barrier_wait(at_.tile_empty(slot_.stage()), slot_.parity() ^ 1);
      slots_.number(slot_.stage()) = tile;
      int begin = 0, end = 0;
      if (tile < a_.tiles) announce(tile, begin, end);
      barrier_arrive(at_.tile_full(slot_.stage()));
      slot_.advance();
      if (tile >= a_.tiles) break;
      load(begin, end);
      // Drawn late, so that a long tile does not reserve its successor. Each tile makes one call: the one that gets
      // tiles - 1 is the launch's last, and resets the queue.
      int const drawn = atomicAdd(a_.queue, 1);
      if (drawn == a_.tiles - 1) *a_.queue = 0;
      tile = drawn + static_cast<int>(gridDim.x);
    }
    allow_later_kernel();
  }

 private:
  /// Writes which blocks of keys the tile sees to its slot: the hull of those of its warpgroups.
  __device__ __forceinline__ void announce(int tile, int& begin, int& end) {
    TileOrigin const origin = tile_origin<C::queries>(a_, tile);
    query_ = origin.query;
    batch_ = origin.head / a_.query_heads;
    head_ = origin.head - batch_ * a_.query_heads;
    kv_head_ = head_ / a_.group;
#pragma unroll 1
    for (int group = 0; group < C::groups; ++group) {
      KeyBlocks const blocks = blocks_within<C::keys>(a_.visible.bounds_of(batch_, query_ + group * bounded_rows));
      slots_.put_group(slot_.stage(), group, blocks);
      if (blocks.begin == blocks.end) continue;
      begin = begin == end ? blocks.begin : min(begin, blocks.begin);
      end = max(end, blocks.end);
    }
    slots_.head(slot_.stage()) = origin.head;
    slots_.query(slot_.stage()) = origin.query;
    slots_.begin(slot_.stage()) = begin;
    slots_.end(slot_.stage()) = end;
  }

  /// Copies the blocks of a tile, last first. V one block behind K: that is the order in which they are needed.
  __device__ __forceinline__ void load(int begin, int end) {
    for (int n = end - 1; n >= begin; --n) {
      load_k(n);
      if (n == end - 1)
        load_q();
      else
        load_v(n + 1);
    }
    if (begin < end) load_v(begin);
  }

  __device__ __forceinline__ void load_q() {
#pragma unroll 1
    for (int group = 0; group < C::groups; ++group) {
      barrier_wait(at_.q_empty(group), q_parity_ ^ 1);
      barrier_arrive_expect(at_.q_full(group), C::group_bytes);
      for (int panel = 0; panel < panels_of(C::head_dim); ++panel)
        copy_box(at_.q(group) + panel * (bounded_rows * 128), &a_.q, at_.q_full(group),
                 {panel * panel_columns, query_ + group * bounded_rows, head_, batch_}, CachePolicy::evict_first);
    }
    q_parity_ ^= 1;
  }
  __device__ __forceinline__ void load_k(int block) {
    barrier_wait(at_.k_empty(k_.stage), k_.parity ^ 1);
    barrier_arrive_expect(at_.k_full(k_.stage), C::k_bytes);
    copy_block<C::head_dim>(at_.k(k_.stage), a_.k, at_.k_full(k_.stage), block);
    k_.advance();
  }
  __device__ __forceinline__ void load_v(int block) {
    barrier_wait(at_.v_empty(v_.stage), v_.parity ^ 1);
    barrier_arrive_expect(at_.v_full(v_.stage), C::v_bytes);
    copy_block<C::value_dim>(at_.v(v_.stage), a_.v, at_.v_full(v_.stage), block);
    v_.advance();
  }
  template <int Columns>
  __device__ __forceinline__ void copy_block(std::uint32_t to, CUtensorMap const& map, std::uint32_t barrier,
                                             int block) {
    for (int panel = 0; panel < panels_of(Columns); ++panel)
      copy_box(to + panel * (C::keys * 128), &map, barrier, {panel * panel_columns, block * C::keys, kv_head_, batch_},
               CachePolicy::evict_last);
  }

  FoldParameters<T> const& a_;
  FoldMap<C> at_;
  TileSlots<C> slots_;
  Cursor<C::k_stages> k_;
  Cursor<C::v_stages> v_;
  SlotCursor slot_;
  std::uint32_t q_parity_ = 0;
  int query_ = 0, batch_ = 0, head_ = 0, kv_head_ = 0;  // of the tile
};

/// One warp: has the state of each tile brought to the L2 when the tile is begun, long before it is joined.
template <class C, class T>
__device__ __forceinline__ void fetch_state(FoldParameters<T> const& a, FoldMap<C> at, TileSlots<C> slots) {
  int const lane = threadIdx.x & 31;
  SlotCursor slot;
  while (true) {
    barrier_wait(at.tile_full(slot.stage()), slot.parity());
    int const tile = slots.number(slot.stage()), head = slots.head(slot.stage()), query = slots.query(slot.stage());
    bool const sees = slots.begin(slot.stage()) < slots.end(slot.stage());
    release(at.tile_empty(slot.stage()));
    slot.advance();
    if (tile >= a.tiles) break;
    if (!sees) continue;
    for (int row = query + lane; row < min(query + C::queries, a.visible.queries); row += 32)
      prefetch_to_l2(row_of(a.accumulator, head, a.query_heads, row), C::value_dim * 4);
  }
}

}  // namespace annulus::cuda::detail::hopper
