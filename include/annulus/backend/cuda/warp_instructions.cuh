#pragma once
// Instructions of sm_80 that CUDA C++ lacks, one function each; names in brackets are sections of NVIDIA's manual "PTX
// ISA". Products of 16 x 8 elements over 16, by all threads of a warp, with g = lane / 4 and t = lane % 4:
//   left    four words: rows g and g + 8 of elements 2t, 2t + 1, then the same rows of elements 2t + 8, 2t + 9
//   right   two words: elements 2t, 2t + 1 of column g, then its elements 2t + 8, 2t + 9
//   sums    four numbers: row g of columns 2t, 2t + 1, then row g + 8 of the same columns

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace annulus::cuda::detail {

/// sums += left * right. [mma]
template <class T>
__device__ inline void multiply_fragments(float (&sums)[4], std::uint32_t const (&left)[4], std::uint32_t right0,
                                          std::uint32_t right1) {
  if constexpr (std::is_same_v<T, __half>)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));
}

/// Four matrices of 8 x 8 elements from shared memory. Lane l gives the address of row l % 8 of matrix l / 8, and gets
/// elements 2t, 2t + 1 of row g of each. [ldmatrix]
__device__ inline void load_matrices(std::uint32_t (&words)[4], void const* row) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

/// The same, transposed: elements 2t, 2t + 1 of column g. [ldmatrix: .trans]
__device__ inline void load_transposed(std::uint32_t (&words)[4], void const* row) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

/// 16 bytes that no block writes and none reads again. [ld.global.nc]
__device__ inline uint4 load_once(void const* from) {
  uint4 words;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "l"(from));
  return words;
}

/// Begins to copy 16 bytes to shared memory, or to set them to 0. [cp.async]
__device__ inline void begin_copy(void* to, void const* from, bool exists) {
  auto const address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}

/// Ends a group of copies of this thread. [cp.async.commit_group]
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits for all groups of copies of this thread but the last `Pending`. [cp.async.wait_group]
template <int Pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// Two numbers rounded to T, `low` in the low half of the word. [cvt]
template <class T>
__device__ inline std::uint32_t packed(float low, float high) {
  std::uint32_t word;
  if constexpr (std::is_same_v<T, __half>)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/// exp(x) with an error of 2 units in the last place and of |x| roundings.
__device__ inline float fast_exponential(float x) { return __expf(x); }

}  // namespace annulus::cuda::detail
