#pragma once
// The instructions of the library's header of this name, by their definitions in the manual "PTX ISA".

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace annulus::cuda::detail {

/// The numbers of all words of 16 bits.
template <class T>
float const* numbers_of_words() {
  static std::vector<float> const numbers = [] {
    std::vector<float> all;
    for (unsigned word = 0; word < 65536; ++word) {
      auto const bits = static_cast<std::uint16_t>(word);
      T value;
      std::memcpy(static_cast<void*>(&value), &bits, sizeof bits);
      if constexpr (std::is_same_v<T, __half>)
        all.push_back(__half2float(value));
      else
        all.push_back(__bfloat162float(value));
    }
    return all;
  }();
  return numbers.data();
}

template <class T>
void multiply_fragments(float (&sums)[4], std::uint32_t const (&left)[4], std::uint32_t right0, std::uint32_t right1) {
  std::uint32_t const mine[6] = {left[0], left[1], left[2], left[3], right0, right1};
  unsigned const lane = emulated_cuda::lane_of_thread(), g = lane / 4, t = lane % 4;
  emulated_cuda::WarpExchange const exchange = emulated_cuda::next_exchange();
  std::memcpy(exchange.bytes[lane], mine, sizeof mine);
  emulated_cuda::meet_warp();
  float const* const number = numbers_of_words<T>();
  auto const word_of = [&](unsigned other, unsigned n) {
    std::uint32_t word;
    std::memcpy(&word, exchange.bytes[other] + 4 * n, 4);
    return word;
  };
  for (unsigned sum = 0; sum < 4; ++sum)
    for (unsigned pair = 0; pair < 8; ++pair) {  // elements 2 pair and 2 pair + 1
      unsigned const holder = pair % 4, half = pair / 4;
      std::uint32_t const a = word_of(g * 4 + holder, 2 * half + sum / 2),
                          b = word_of((2 * t + sum % 2) * 4 + holder, 4 + half);
      sums[sum] += number[a & 0xffff] * number[b & 0xffff] + number[a >> 16] * number[b >> 16];
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

inline uint4 load_once(void const* from) {
  uint4 words;
  std::memcpy(&words, from, sizeof words);
  return words;
}

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
