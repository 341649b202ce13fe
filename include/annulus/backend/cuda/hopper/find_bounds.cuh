#pragma once
// Kernels that find, for ranges that only the device knows, which blocks of queries and keys see each other.

#include "annulus/backend/cuda/hopper/visible_blocks.cuh"

namespace annulus::cuda::detail::hopper {

/// Bounds of blocks of 64 query rows from their ranges. A warp per block; two rows per lane.
static __global__ void __launch_bounds__(128) find_key_bounds(VisibleRows visible, int4* bounds, int count) {
  int const index = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31;
  if (index >= count) return;
  int const batch = index / visible.query_blocks, first = (index - batch * visible.query_blocks) * bounded_rows;
  int begin = visible.keys, end = 0, full_begin = 0, full_end = visible.keys;
  for (int row = first + lane; row < min(first + bounded_rows, visible.queries); row += 32) {
    int2 const seen = visible.keys_of(batch, row);
    if (seen.x < seen.y) {
      begin = min(begin, seen.x);
      end = max(end, seen.y);
    }
    full_begin = max(full_begin, seen.x);
    full_end = min(full_end, seen.x < seen.y ? seen.y : 0);  // a row that sees nothing: no key is seen by all
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    begin = min(begin, __shfl_xor_sync(~0u, begin, step));
    end = max(end, __shfl_xor_sync(~0u, end, step));
    full_begin = max(full_begin, __shfl_xor_sync(~0u, full_begin, step));
    full_end = min(full_end, __shfl_xor_sync(~0u, full_end, step));
  }
  if (lane == 0) bounds[index] = begin < end ? int4{begin, end, full_begin, full_end} : int4{0, 0, 0, 0};
}

/// Blocks of queries of each block of keys, from the bounds of the former. A warp per block of keys.
static __global__ void __launch_bounds__(128) find_query_blocks(VisibleRows visible, int4* blocks, int count) {
  int const index = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31;
  if (index >= count) return;
  int const batch = index / visible.key_blocks, key_block = index - batch * visible.key_blocks;
  int begin = visible.query_blocks, end = 0, seen = 0;
  for (int block = lane; block < visible.query_blocks; block += 32) {
    KeyBounds const bounds = visible.bounds_of(batch, block * bounded_rows);
    if (bounds.begin >= bounds.end) continue;
    if (bounds.begin / gradient_keys > key_block || (bounds.end - 1) / gradient_keys < key_block) continue;
    begin = min(begin, block);
    end = block + 1;
    ++seen;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    begin = min(begin, __shfl_xor_sync(~0u, begin, step));
    end = max(end, __shfl_xor_sync(~0u, end, step));
    seen += __shfl_xor_sync(~0u, seen, step);
  }
  if (lane == 0) blocks[index] = seen > 0 ? int4{begin, end, seen, 0} : int4{0, 0, 0, 0};
}

}  // namespace annulus::cuda::detail::hopper
