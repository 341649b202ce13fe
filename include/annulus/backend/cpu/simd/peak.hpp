#pragma once
// Loops that measure a processor's peak rate: the fastest multiply-add instructions of the target, on registers alone.

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "annulus/backend/cpu/simd/operand.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {

inline namespace ANNULUS_CPU_TARGET {
namespace detail {

inline constexpr int running_sums = vector_registers == 32 ? 24 : 12;

/// Keeps the compiler from removing the computation of the value.
template <class A>
[[gnu::always_inline]] inline void use(A const& value) {
  asm volatile("" : : "m"(value) : "memory");
}

template <class A>
[[gnu::noinline]] double multiply_adds(long repetitions) {
  using V = Vector<A>;
  // Volatile: unknown to the compiler. The sums stay normal, as denormals are a hundred times slower on some cores.
  A const volatile factor = A(0.999), term = A(1e-4);
  V const x = V::of(factor), y = V::of(term);
  V sums[running_sums];
  for (V& sum : sums) sum = y;
  for (long repetition = 0; repetition < repetitions; ++repetition) {
#pragma GCC unroll 32
    for (int i = 0; i < running_sums; ++i) sums[i] = multiply_add(sums[i], x, y);
  }
  V total = V::zero();
  for (V const& sum : sums) total = total + sum;
  use(total.native);
  return 2.0 * V::lanes * running_sums * static_cast<double>(repetitions);
}

#if defined(__AVX512BF16__)
[[gnu::noinline]] inline double pair_products(long repetitions) {
  int const volatile pair = 0x3c003c00;  // 2^-7 twice
  auto const x = (__m512bh)_mm512_set1_epi32(pair);
  __m512 sums[running_sums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (long repetition = 0; repetition < repetitions; ++repetition) {
#pragma GCC unroll 32
    for (int i = 0; i < running_sums; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], x, x);
  }
  __m512 total = _mm512_setzero_ps();
  for (__m512 const& sum : sums) total = _mm512_add_ps(total, sum);
  use(total);
  return 64.0 * running_sums * static_cast<double>(repetitions);
}
#endif

#if defined(ANNULUS_CPU_HAS_AMX)
/// Products of AMX tiles of 16 x 32 and 32 x 16 elements into four tiles of sums.
[[gnu::noinline]] inline double tile_products(long repetitions) {
  alignas(64) std::uint16_t elements[512];
  std::fill(std::begin(elements), std::end(elements), std::uint16_t{0x3c00});  // 2^-7
  AmxTiles const tiles;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, elements, 64);
  _tile_loadd(5, elements, 64);
  _tile_loadd(6, elements, 64);
  _tile_loadd(7, elements, 64);
  for (long repetition = 0; repetition < repetitions; ++repetition) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return 4 * 16384.0 * static_cast<double>(repetitions);
}
#endif

}  // namespace detail

/// Peak loop for elements of type T, with sums in float (double for double). half is widened to float.
template <class T>
PeakLoop peak_loop() {
  if constexpr (std::is_same_v<T, Eigen::bfloat16>) {
#if defined(ANNULUS_CPU_HAS_AMX)
    if (amx_is_permitted()) return {"AMX tile product", detail::tile_products};
#endif
#if defined(__AVX512BF16__)
    return {"bfloat16 pair product", detail::pair_products};
#endif
  }
  return {"multiply-add", detail::multiply_adds<Accumulator<T>>};
}

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
