#pragma once
// Visible keys of blocks of query rows, which decide what a kernel visits: computed from a band, or, for ranges that
// only the device knows, found by kernels of their own before the step (find_bounds.cuh).

#include "annulus/backend/cuda/hopper/pipeline.cuh"

namespace annulus::cuda::detail::hopper {

/// Query rows that share a KeyBounds: those of a warpgroup in the forward pass, and a block of queries in the backward.
inline constexpr int bounded_rows = 64;
/// Keys of a tile of the backward pass.
inline constexpr int gradient_keys = 128;

/// Keys [begin, end) that some row of a block of query rows sees, and those of them, [full_begin, full_end), that all
/// rows see. Both may be empty.
struct KeyBounds {
  int begin, end, full_begin, full_end;
};

/// Blocks of queries that see a key of a block of keys: `count` of those in [begin, end).
struct QueryBlocks {
  int begin, end, count;
};

/// Coverage of a step, as kernels read it. Without ranges, it is the band.
struct VisibleRows {
  int queries, keys;
  int low, high;           ///< band; low and high are within +-2^30
  int2 const* ranges;      ///< of the query rows; null: the band
  long long ranges_batch;  ///< from one batch item to the next; 0: they are the same
  int4 const* bounds;      ///< with ranges: KeyBounds of blocks of 64 query rows, [batch, query_blocks]
  int4 const* blocks;      ///< with ranges, backward pass: QueryBlocks of blocks of 128 keys, [batch, key_blocks]
  int query_blocks, key_blocks;
  int const* exact;  ///< null, or 0: the step is left to other kernels

  __device__ __forceinline__ bool left_to_others() const { return exact != nullptr && *exact == 0; }

  /// Keys [x, y) of a query row, which exists.
  __device__ __forceinline__ int2 keys_of(int batch, int row) const {
    if (ranges == nullptr) return {max(row + low, 0), min(row + high + 1, keys)};
    int2 const range = __ldg(ranges + batch * ranges_batch + row);
    return {max(range.x, 0), min(range.y, keys)};
  }

  /// Bounds of the 64 query rows from `first` on, of which some may not exist.
  __device__ __forceinline__ KeyBounds bounds_of(int batch, int first) const {
    int const last = min(first + bounded_rows, queries) - 1;
    if (last < first) return {0, 0, 0, 0};
    if (ranges != nullptr) {
      int const item = ranges_batch == 0 ? 0 : batch;
      int4 const found = __ldg(bounds + item * query_blocks + first / bounded_rows);
      return {found.x, found.y, found.z, found.w};
    }
    int const begin = max(first + low, 0), end = min(last + high + 1, keys);
    if (end <= begin) return {0, 0, 0, 0};
    return {begin, end, max(last + low, 0), max(min(first + high + 1, keys), 0)};
  }

  /// Blocks of queries that see a key of block `key_block`.
  __device__ __forceinline__ QueryBlocks queries_of(int batch, int key_block) const {
    if (ranges != nullptr) {
      int const item = ranges_batch == 0 ? 0 : batch;
      int4 const found = __ldg(blocks + item * key_blocks + key_block);
      return {found.x, found.y, found.z};
    }
    int const key_first = key_block * gradient_keys, key_last = min(key_first + gradient_keys, keys) - 1;
    int const first = max(key_first - high, 0), last = min(key_last - low, queries - 1);
    if (last < first) return {0, 0, 0};
    int const begin = first / bounded_rows, end = last / bounded_rows + 1;
    return {begin, end, end - begin};
  }
};

}  // namespace annulus::cuda::detail::hopper
