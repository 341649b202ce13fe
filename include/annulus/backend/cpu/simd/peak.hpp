#pragma once
// Loops that measure a processor's peak rate: the fastest multiply-add instructions of the target, on registers alone.

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "annulus/backend/cpu/simd/operand.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

inline constexpr int running_sums = vector_registers == 32 ? 24 : 12;

/// Makes the value unknown to the compiler, which can then neither remove nor merge the computations that use it.
template <class V>
[[gnu::always_inline]] inline void hide(V& value) {
  asm volatile("" : "+m"(value) : : "memory");
}

/// Multiply-adds of elements E that all have this value; the sums stay normal, as denormals are a hundred times slower
/// on some cores.
template <class E>
[[gnu::noinline]] double multiply_adds(E value, long repetitions) {
  using O = Operand<E>;
  using V = Vector<typename O::Sum>;
  hide(value);
  auto const factor = O::repeat(value);
  V sums[running_sums];
  for (V& sum : sums) {
    sum = V::zero();
    hide(sum.native);
  }
  for (long repetition = 0; repetition < repetitions; ++repetition) {
#pragma GCC unroll 32
    for (int i = 0; i < running_sums; ++i) sums[i] = O::multiply_add(factor, factor, sums[i]);
  }
  V total = V::zero();
  for (V const& sum : sums) total = total + sum;
  hide(total.native);
  return 2.0 * O::depth * V::lanes * running_sums * static_cast<double>(repetitions);
}

#if defined(ANNULUS_CPU_HAS_AMX)
/// Products of AMX tiles of 16 x 32 and 32 x 16 elements into four tiles of sums.
[[gnu::noinline]] inline double tile_products(long repetitions) {
  alignas(64) std::uint16_t elements[512];
  std::fill(std::begin(elements), std::end(elements), std::uint16_t{0x3c00});  // 2^-7
  AmxTilesFor<BfloatPair> const tiles;
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

/// Peak loop for elements of type T, with sums in float (double for double). half is widened to float.
template <class T>
PeakLoop peak_loop() {
  using E = BlockElement<T>;
#if defined(ANNULUS_CPU_HAS_AMX)
  if (is_pair<E> && amx_is_permitted()) return {"AMX tile product", tile_products};
#endif
  if constexpr (is_quad<E>)
    return {"bfloat16 quad product",
            [](long repetitions) { return multiply_adds(BfloatQuad{0x3c003c003c003c00}, repetitions); }};  // 2^-7
  else if constexpr (is_pair<E>)
    return {"bfloat16 pair product",
            [](long repetitions) { return multiply_adds(BfloatPair{0x3c003c00}, repetitions); }};  // 2^-7 twice
  else
    return {"multiply-add", [](long repetitions) { return multiply_adds(E(0.01), repetitions); }};
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
