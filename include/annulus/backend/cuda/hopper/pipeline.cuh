#pragma once
// What the kernels of both passes share: rings of stages in shared memory, and exchanges among the four threads of a
// row.

#include <cstdint>

#include "annulus/backend/cuda/hopper/ptx.cuh"
#include "annulus/backend/cuda/step_arguments.hpp"

namespace annulus::cuda::detail::hopper {

inline constexpr float log2_of_e = 1.44269504f;
__device__ constexpr float infinity = __builtin_huge_valf();

/// A position in a ring of stages in shared memory, and the parity of its current round.
template <int Stages>
struct Cursor {
  std::uint32_t stage = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == Stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ Cursor next() const {
    Cursor cursor = *this;
    cursor.advance();
    return cursor;
  }
};

/// The same for four stages, in one register.
struct SlotCursor {
  std::uint32_t count = 0;

  __device__ __forceinline__ std::uint32_t stage() const { return count & 3; }
  __device__ __forceinline__ std::uint32_t parity() const { return count >> 2 & 1; }
  __device__ __forceinline__ void advance() { ++count; }
};

/// One arrival of a warp, when all of its lanes are done.
__device__ __forceinline__ void release(std::uint32_t barrier) {
  __syncwarp();
  if (lane_now() == 0) barrier_arrive(barrier);
}

/// Row of an operand, a sum or a result. `head` counts the heads of all batch items: batch * heads + head.
template <class T>
__device__ __forceinline__ T* row_of(StridedRows<T> const& rows, int head, int heads, int row) {
  int const batch = head / heads;
  return rows.data + batch * rows.batch + (head - batch * heads) * rows.head + row * rows.row;
}
template <class T>
__device__ __forceinline__ T* row_of(StridedStatistic<T> const& rows, int head, int heads, int row) {
  int const batch = head / heads;
  return rows.data + batch * rows.batch + (head - batch * heads) * rows.head + row * rows.row;
}

/// 4x4 transpose of words among the four threads of a quad: word j of thread t becomes word t of thread j.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&w)[4], int lane) {
  bool const odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    std::uint32_t const got = __shfl_xor_sync(~0u, odd ? w[j] : w[j + 1], 1);
    w[j] = odd ? got : w[j];
    w[j + 1] = odd ? w[j + 1] : got;
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    std::uint32_t const got = __shfl_xor_sync(~0u, high ? w[j] : w[j + 2], 2);
    w[j] = high ? got : w[j];
    w[j + 2] = high ? w[j + 2] : got;
  }
}

/// Writes row `r` (0: the thread's row, 1: the one 8 below) of a product to `line`, times `factor`, rounded to T. All
/// threads of the warp call it; those without a row with `exists` false. A thread ends with 8 adjacent columns.
template <class T, int Count>
__device__ __forceinline__ void write_rounded(T* line, float const (&d)[Count], int r, float factor, bool exists,
                                              int lane) {
#pragma unroll
  for (int g = 0; g < Count / 16; ++g) {  // 32 columns
    std::uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      words[j] = packed<T>(d[16 * g + 4 * j + 2 * r] * factor, d[16 * g + 4 * j + 2 * r + 1] * factor);
    transpose_quad(words, lane);
    if (exists)
      *reinterpret_cast<uint4*>(line + 32 * g + 8 * (lane & 3)) = uint4{words[0], words[1], words[2], words[3]};
  }
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

}  // namespace annulus::cuda::detail::hopper
