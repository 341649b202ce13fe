#pragma once
// The instructions of the library's header of this name, by their definitions in the manual "PTX ISA".

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace annulus::cuda::detail {

inline float number_of(__half value) { return __half2float(value); }
inline float number_of(__nv_bfloat16 value) { return __bfloat162float(value); }

/// Elements `low` and `high` of a word.
template <class T>
struct WordElements {
  T low, high;

  explicit WordElements(std::uint32_t word) { std::memcpy(static_cast<void*>(this), &word, sizeof word); }
};

template <class T>
void multiply_fragments(float (&sums)[4], std::uint32_t const (&left)[4], std::uint32_t right0, std::uint32_t right1) {
  struct Fragments {
    std::uint32_t left[4], right[2];
  } mine{{left[0], left[1], left[2], left[3]}, {right0, right1}};
  unsigned const lane = emulated_cuda::lane_of_thread(), g = lane / 4, t = lane % 4;
  emulated_cuda::WarpExchange const exchange = emulated_cuda::next_exchange();
  std::memcpy(exchange.bytes[lane], &mine, sizeof mine);
  emulated_cuda::meet_warp();
  auto const of_lane = [&](unsigned other) {
    Fragments fragments;
    std::memcpy(&fragments, exchange.bytes[other], sizeof fragments);
    return fragments;
  };
  for (unsigned sum = 0; sum < 4; ++sum) {
    unsigned const row_half = sum / 2, column = 2 * t + sum % 2;
    for (unsigned pair = 0; pair < 8; ++pair) {  // elements 2 pair and 2 pair + 1
      unsigned const holder = pair % 4, word = pair / 4;
      WordElements<T> const a(of_lane(g * 4 + holder).left[2 * word + row_half]),
          b(of_lane(column * 4 + holder).right[word]);
      sums[sum] += number_of(a.low) * number_of(b.low) + number_of(a.high) * number_of(b.high);
    }
  }
}

inline void exchange_matrices(std::uint32_t (&words)[4], void const* row, bool transposed) {
  unsigned const lane = emulated_cuda::lane_of_thread(), g = lane / 4, t = lane % 4;
  emulated_cuda::WarpExchange const exchange = emulated_cuda::next_exchange();
  std::memcpy(exchange.bytes[lane], row, 16);
  emulated_cuda::meet_warp();
  auto const element = [&](unsigned matrix, unsigned of_row, unsigned of_column) {
    std::uint16_t bits;
    std::memcpy(&bits, exchange.bytes[matrix * 8 + of_row] + 2 * of_column, 2);
    return std::uint32_t{bits};
  };
  for (unsigned matrix = 0; matrix < 4; ++matrix)
    words[matrix] = transposed ? element(matrix, 2 * t, g) | element(matrix, 2 * t + 1, g) << 16
                               : element(matrix, g, 2 * t) | element(matrix, g, 2 * t + 1) << 16;
}
inline void load_matrices(std::uint32_t (&words)[4], void const* row) { exchange_matrices(words, row, false); }
inline void load_transposed(std::uint32_t (&words)[4], void const* row) { exchange_matrices(words, row, true); }

/// Copies are put off until they are waited for, so that a missing wait leaves old bytes.
void begin_copy(void* to, void const* from, bool exists);
void end_copies();
void wait_for_copies_but(int pending);
template <int Pending>
void wait_for_copies() {
  wait_for_copies_but(Pending);
}

template <class T>
std::uint32_t packed(float low, float high) {
  T elements[2];
  if constexpr (std::is_same_v<T, __half>)
    elements[0] = __float2half_rn(low), elements[1] = __float2half_rn(high);
  else
    elements[0] = __float2bfloat16_rn(low), elements[1] = __float2bfloat16_rn(high);
  std::uint32_t word;
  std::memcpy(&word, elements, sizeof word);
  return word;
}

inline float fast_exponential(float x) { return std::exp(x); }

}  // namespace annulus::cuda::detail
