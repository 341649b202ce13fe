#pragma once
// A forward step as its kernel reads it, and its division into tiles.

#include "annulus/backend/cuda/hopper/fold_choice.cuh"

namespace annulus::cuda::detail::hopper {

template <class T>
struct FoldParameters {
  CUtensorMap q, k, v;                          ///< boxes of 64 columns; see tensor_map.hpp
  StridedRows<T const> q_rows, k_rows, v_rows;  ///< the same operands
  VisibleRows visible;
  /// Of the states, `maximum` is a reference to which sums are relative, in natural units; -inf: no key yet. It may be
  /// up to 2^32 (half: 2^15) below the true maximum: (reference, sum, accumulator) obey the same merge rule.
  StridedRows<float> accumulator;
  StridedStatistic<float> maximum, sum;
  StridedRows<T> output;
  StridedStatistic<float> lse, lse_remainder;
  float const* sinks;  ///< [query_heads, sink_count]
  int sink_count;
  long long sink_head, sink;
  int query_heads, heads, group;  ///< heads: of all batch items; group: query heads per kv head
  float logits_to_log2;           ///< softmax scale * log2(e)
  int tiles, query_tiles, heads_together;
  bool last_first;  ///< the longest tiles are those of the last queries (causal)
  int* queue;       ///< one int, 0; the kernel leaves it 0
};

/// Origin of a tile. The head counts the heads of all batch items.
struct TileOrigin {
  int head, query;
};

/// Tiles are numbered so that the heads whose keys fit in the L2 together come together, and in them the longest first.
template <int Queries, class T>
__device__ __forceinline__ TileOrigin tile_origin(FoldParameters<T> const& a, int tile) {
  int const section = tile / (a.heads_together * a.query_tiles), first_head = section * a.heads_together;
  int const within = tile - first_head * a.query_tiles, heads = min(a.heads_together, a.heads - first_head);
  int const rank = within / heads;
  return {first_head + within - rank * heads, (a.last_first ? a.query_tiles - 1 - rank : rank) * Queries};
}

/// Blocks of keys [begin, end) that rows see, and those of them, [full_begin, full_end), that all rows see whole.
struct KeyBlocks {
  int begin, end, full_begin, full_end;
};

template <int Keys>
__device__ __forceinline__ KeyBlocks blocks_within(KeyBounds const& bounds) {
  return {bounds.begin / Keys, (bounds.end + Keys - 1) / Keys, (bounds.full_begin + Keys - 1) / Keys,
          bounds.full_end / Keys};
}

/// A tile as the feeder tells the other warps, in shared memory: its number and origin, the blocks that its rows see,
/// and those that the rows of each computing warpgroup see. Readers keep the slot until they are done, and read it
/// again rather than keep numbers in registers, which are scarce.
template <class C>
struct TileSlots {
  int volatile* slots;

  __device__ int volatile& number(int slot) const { return at(slot)[0]; }
  __device__ int volatile& head(int slot) const { return at(slot)[1]; }
  __device__ int volatile& query(int slot) const { return at(slot)[2]; }
  __device__ int volatile& begin(int slot) const { return at(slot)[3]; }
  __device__ int volatile& end(int slot) const { return at(slot)[4]; }

  __device__ void put_group(int slot, int group, KeyBlocks const& blocks) const {
    int volatile* const to = at(slot) + 5 + 4 * group;
    to[0] = blocks.begin;
    to[1] = blocks.end;
    to[2] = blocks.full_begin;
    to[3] = blocks.full_end;
  }
  __device__ KeyBlocks group(int slot, int group) const {
    int const volatile* const from = at(slot) + 5 + 4 * group;
    return {from[0], from[1], from[2], from[3]};
  }

 private:
  __device__ int volatile* at(int slot) const { return slots + slot * (C::slot_bytes / 4); }
};

}  // namespace annulus::cuda::detail::hopper
