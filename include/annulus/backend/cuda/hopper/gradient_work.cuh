#pragma once
// A step of the backward pass as its kernel reads it, its division into tiles, and the steps through a tile.

#include "annulus/backend/cuda/hopper/gradient_choice.cuh"

namespace annulus::cuda::detail::hopper {

template <class T>
struct GradientParameters {
  CUtensorMap q, k, v, dout;  ///< boxes of 64 columns
  CUtensorMap dq;             ///< fp32, boxes of all columns
  VisibleRows visible;
  StridedStatistic<float const> lse, lse_remainder, delta;
  StridedRows<float> dk, dv;
  StridedRows<T> dk_result, dv_result;
  bool opens_queries, opens_keys, closes_keys;
  int query_heads, kv_heads, all_kv_heads, group;  ///< all: of all batch items; group: query heads per kv head
  float logits_to_log2;                            ///< softmax scale * log2(e)
  float softmax_scale;
  int tiles, first_key_block, key_blocks;  ///< of this launch
  int heads_together;                      ///< kv heads that are worked on at the same time
  int* queue;                              ///< one int, 0; the kernel leaves it 0
  int* turns;                              ///< [batch * query_heads, query_blocks], 0; the kernel leaves them 0
};

/// Factors that keep weights in the range of T. Of half, P is multiplied by 2^10 and dS lacks the softmax scale, which
/// dq and dk get at the end: the numbers of a long row are below half's range.
template <class T>
struct GradientFactors {
  static constexpr bool is_half = std::is_same_v<T, __half>;
  static constexpr float log2_of_weight = is_half ? 10.f : 0.f;  ///< of P
  static constexpr float of_dv = is_half ? 0x1p-10f : 1.f;       ///< dv is multiplied by this at the end

  /// dS = P times (this * dP - this * delta).
  static __device__ __forceinline__ float of_ds(float softmax_scale) { return is_half ? of_dv : softmax_scale; }
};

/// A tile as the feeder tells the other warps, in shared memory. There are two, used in turn; readers keep a slot until
/// they are done. A tile is 128 keys of a kv head. Its steps are, for each query head of the group, the blocks of
/// queries that see a key of it, from last to first.
struct GradientTile {
  int number;   ///< at least GradientParameters::tiles: there is none
  int kv_head;  ///< of all batch items
  int key_block;
  int begin, end;  ///< hull of the blocks of queries
  int steps;
};

struct GradientSlots {
  int volatile* slots;

  __device__ void put(int slot, GradientTile const& tile) const {
    int volatile* const to = slots + slot * 6;
    to[0] = tile.number;
    to[1] = tile.kv_head;
    to[2] = tile.key_block;
    to[3] = tile.begin;
    to[4] = tile.end;
    to[5] = tile.steps;
  }
  __device__ GradientTile get(int slot) const {
    int const volatile* const from = slots + slot * 6;
    return {from[0], from[1], from[2], from[3], from[4], from[5]};
  }
};

/// Tiles are numbered so that few heads are worked on at a time, whose q, dout and dq stay in the L2, and in them
/// blocks of keys in ascending order, which is that of the sums.
template <class T>
__device__ __forceinline__ GradientTile gradient_tile(GradientParameters<T> const& a, int number) {
  int const section = number / (a.heads_together * a.key_blocks), first_head = section * a.heads_together;
  int const within = number - first_head * a.key_blocks, heads = min(a.heads_together, a.all_kv_heads - first_head);
  int const j = within / heads, kv_head = first_head + within - j * heads, key_block = a.first_key_block + j;
  QueryBlocks const blocks = a.visible.queries_of(kv_head / a.kv_heads, key_block);
  return {number, kv_head, key_block, blocks.begin, blocks.end, blocks.count * a.group};
}

/// Blocks of keys [first, last] that add to a block of queries.
struct KeyBlockRange {
  int first, last;
};
__device__ __forceinline__ KeyBlockRange key_blocks_of(VisibleRows const& visible, int batch, int query_block) {
  KeyBounds const bounds = visible.bounds_of(batch, query_block * bounded_rows);
  return {bounds.begin / gradient_keys, (bounds.end + gradient_keys - 1) / gradient_keys - 1};
}

/// Walks through the steps of a tile.
template <class T>
struct GradientSteps {
  GradientParameters<T> const& a;
  int batch, head, key_block, begin, end;  ///< head: of the batch item
  int block;                               ///< of queries

  __device__ GradientSteps(GradientParameters<T> const& arguments, GradientTile const& tile)
      : a(arguments), key_block(tile.key_block), begin(tile.begin), end(tile.end), block(tile.end - 1) {
    batch = tile.kv_head / a.kv_heads;
    head = (tile.kv_head - batch * a.kv_heads) * a.group;
  }
  __device__ __forceinline__ void advance() {
    step_back();
    if (a.visible.ranges != nullptr)
      while (!sees()) step_back();
  }
  __device__ __forceinline__ int query() const { return block * bounded_rows; }

 private:
  __device__ __forceinline__ void step_back() {
    if (--block < begin) {
      block = end - 1;
      ++head;
    }
  }
  /// Ranges may leave out blocks within the hull. The last block of the hull is not one of them.
  __device__ __forceinline__ bool sees() const {
    KeyBlockRange const range = key_blocks_of(a.visible, batch, block);
    return range.first <= key_block && key_block <= range.last;
  }
};

}  // namespace annulus::cuda::detail::hopper
