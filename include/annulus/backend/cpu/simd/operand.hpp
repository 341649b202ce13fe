#pragma once
// Operand elements of products: single values, or pairs of bfloat16 where the target has a pair product instruction.

#include <Eigen/Core>
#include <concepts>
#include <cstdint>
#include <type_traits>

#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Two bfloat16 neighbours along the summed axis; the first in the low bits.
struct BfloatPair {
  std::uint32_t bits;
};

/// Loads and multiply-adds for elements E.
template <class E>
struct Operand {
  using Sum = E;
  using Row = Vector<E>;
  static constexpr int depth = 1;  ///< products per element

  [[gnu::always_inline]] static Row load(E const* from) { return Row::load(from); }
  [[gnu::always_inline]] static Row repeat(E element) { return Row::of(element); }
  [[gnu::always_inline]] static Vector<E> multiply_add(Row a, Row b, Vector<E> sum) {
    return cpu::multiply_add(a, b, sum);
  }
};

#if defined(__AVX512BF16__)
inline constexpr bool multiplies_bfloat_pairs = true;

template <>
struct Operand<BfloatPair> {
  using Sum = float;
  using Row = __m512i;
  static constexpr int depth = 2;

  [[gnu::always_inline]] static Row load(BfloatPair const* from) { return _mm512_loadu_si512(from); }
  [[gnu::always_inline]] static Row repeat(BfloatPair element) {
    return _mm512_set1_epi32(static_cast<int>(element.bits));
  }
  [[gnu::always_inline]] static Vector<float> multiply_add(Row a, Row b, Vector<float> sum) {
    return {_mm512_dpbf16_ps(sum.native, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
  }
};

/// Stores pairs rounded to nearest: lane i holds (even, odd) of lane i.
[[gnu::always_inline]] inline void store_pairs_of_rows(Vector<float> even, Vector<float> odd, BfloatPair* to) {
  alignas(64) static constexpr std::uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                          8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  auto const halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.native, even.native));
  _mm512_storeu_si512(to, _mm512_maskz_permutexvar_epi16(static_cast<__mmask32>(-1), _mm512_load_si512(order), halves));
}

/// Stores pairs of neighbouring lanes rounded to nearest, first those of `low`.
[[gnu::always_inline]] inline void store_pairs_of_lanes(Vector<float> low, Vector<float> high, BfloatPair* to) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high.native, low.native)));
}
#else
inline constexpr bool multiplies_bfloat_pairs = false;

/// This target has no pair product; the type is needed for its sizes alone.
template <>
struct Operand<BfloatPair> {
  using Sum = float;
  static constexpr int depth = 2;
};
#endif

/// Packed element type of operands of type T.
template <class T>
using PackedElement =
    std::conditional_t<multiplies_bfloat_pairs && std::same_as<T, Eigen::bfloat16>, BfloatPair, Accumulator<T>>;

/// Pairs hold operands unscaled, so that the softmax scale is applied after the products.
template <class E>
inline constexpr bool is_pair = std::same_as<E, BfloatPair>;

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
