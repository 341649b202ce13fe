#pragma once
// 2^x, e^x and tanh of SIMD vectors, lane by lane.

#include <cstddef>
#include <limits>

#include "annulus/backend/cpu/simd/vector.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Coefficients of 2^r, |r| <= 1/2, ascending. float: minimax in relative error (1.9e-9); double: Taylor (4e-18).
template <class A>
inline constexpr float exponential_coefficients[] = {1.000000000e+00f, 6.931471825e-01f, 2.402264625e-01f,
                                                     5.550328642e-02f, 9.618489072e-03f, 1.339993090e-03f,
                                                     1.534581243e-04f};
template <>
inline constexpr double exponential_coefficients<double>[] = {1.0,
                                                              6.93147180559945309e-01,
                                                              2.40226506959100712e-01,
                                                              5.55041086648215799e-02,
                                                              9.61812910762847716e-03,
                                                              1.33335581464284434e-03,
                                                              1.54035303933816099e-04,
                                                              1.52527338040598402e-05,
                                                              1.32154867901443095e-06,
                                                              1.01780860092396998e-07,
                                                              7.05491162080112332e-09,
                                                              4.44553827187081150e-10,
                                                              2.56784359934882049e-11,
                                                              1.36914888539041289e-12};
/// 2^u = p[i] (1 + r (c[0] + r c[1])) for 0 <= u < 1, i = floor(32 u) and r = u - i / 32: p[i] is 2^(i / 32), and c
/// interpolates at r = 0, 1 / 64 and 1 / 32 (relative error 8.1e-8), so that the result is continuous, and 1 for u = 0.
inline constexpr float exponential_of_rest[] = {6.931198577e-01f, 2.428447759e-01f};
inline constexpr float exponential_of_part[] = {
    1.000000000e+00f, 1.021897197e+00f, 1.044273734e+00f, 1.067140460e+00f, 1.090507746e+00f, 1.114386797e+00f,
    1.138788581e+00f, 1.163724899e+00f, 1.189207077e+00f, 1.215247393e+00f, 1.241857767e+00f, 1.269050956e+00f,
    1.296839595e+00f, 1.325236678e+00f, 1.354255557e+00f, 1.383909941e+00f, 1.414213538e+00f, 1.445180774e+00f,
    1.476826191e+00f, 1.509164453e+00f, 1.542210817e+00f, 1.575980902e+00f, 1.610490322e+00f, 1.645755529e+00f,
    1.681792855e+00f, 1.718619347e+00f, 1.756252170e+00f, 1.794709086e+00f, 1.834008098e+00f, 1.874167681e+00f,
    1.915206552e+00f, 1.957144141e+00f};

/// Lowest exponent of a normal number, and the position of the exponent in its bits.
template <class A>
inline constexpr int lowest_exponent = std::numeric_limits<A>::min_exponent - 1;
template <class A>
inline constexpr int mantissa_bits = std::numeric_limits<A>::digits - 1;

template <class A, std::size_t N>
[[gnu::always_inline]] inline Vector<A> polynomial(A const (&c)[N], Vector<A> r) {
  Vector<A> p = Vector<A>::of(c[N - 1]);
#pragma GCC unroll 16
  for (int i = static_cast<int>(N) - 2; i >= 0; --i) p = multiply_add(p, r, Vector<A>::of(c[i]));
  return p;
}

/// Adding and subtracting 1.5 * 2^mantissa_bits rounds to the nearest integer; after adding, it is in the low bits.
template <class A>
inline constexpr A rounding_shift = A(3) * static_cast<A>(std::int64_t{1} << (mantissa_bits<A> - 1));

/// p * 2^n for `shifted` = n + rounding_shift, if the result is a normal number. Otherwise the sum of exponents wraps,
/// hence the unsigned type.
template <class A>
[[gnu::always_inline]] inline Vector<A> scaled_by_power(Vector<A> p, Vector<A> shifted) {
  using Bits = typename Vector<A>::UnsignedBits;
  Bits const exponent = reinterpret_cast<Bits>(shifted.native) << mantissa_bits<A>;
  return {reinterpret_cast<typename Vector<A>::Native>(reinterpret_cast<Bits>(p.native) + exponent)};
}

/// 2^x for x < 100, within 2 units in the last place, on AVX-512 2.36 for float; 0 for -inf; NaN for NaN. Results below
/// the smallest normal number are 0, or on AVX-512 denormal unless the processor flushes them.
template <class A>
[[gnu::always_inline]] inline Vector<A> exponential2(Vector<A> x) {
  using V = Vector<A>;
#if defined(__AVX512DQ__)
  if constexpr (std::same_as<A, float>) {
    // Of the multipliers, which products keep busy, this needs three operations, a polynomial of 2^u five. Adding the
    // shift, rounded down, puts i in the low bits.
    constexpr auto all = static_cast<__mmask16>(-1);
    constexpr int down = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC, fraction_bits = 5;
    V const shift = V::of(rounding_shift<float> / (1 << fraction_bits));
    __m512i const i = reinterpret_cast<__m512i>(_mm512_maskz_add_round_ps(all, x.native, shift.native, down));
    V const p{_mm512_maskz_permutex2var_ps(all, V::load(exponential_of_part).native, i,
                                           V::load(exponential_of_part + V::lanes).native)};
    // 0 for infinities. The scaling instruction takes the floor of x itself.
    V const r{_mm512_maskz_reduce_ps(all, x.native, fraction_bits << 4 | down)};
    V const slope = multiply_add(r, V::of(exponential_of_rest[1]), V::of(exponential_of_rest[0]));
    return {_mm512_maskz_scalef_ps(all, multiply_add(slope, r * p, p).native, x.native)};
  }
#endif
  auto const vanishes = less(x, V::of(static_cast<A>(lowest_exponent<A>)));
  V const shift = V::of(rounding_shift<A>), shifted = x + shift;
  return select(vanishes, V::zero(),
                scaled_by_power(polynomial(exponential_coefficients<A>, x - (shifted - shift)), shifted));
}

template <class A>
inline constexpr A log2_of_e = static_cast<A>(1.44269504088896340736);

/// e^x for x < 69. For x <= 0 the absolute error is at most one unit in the last place of 1: fit for weights in a sum.
template <class A>
[[gnu::always_inline]] inline Vector<A> exponential(Vector<A> x) {
  return exponential2(x * Vector<A>::of(log2_of_e<A>));
}

/// 1 / (i + 1)!: e^r - 1 is r times the polynomial of these coefficients.
template <class A>
inline constexpr auto expm1_coefficients = [] {
  struct {
    A of[sizeof(A) == 8 ? 13 : 7];
  } coefficients{};
  A factorial = 1;
  int i = 0;
  for (A& coefficient : coefficients.of) coefficient = A(1) / (factorial *= static_cast<A>(++i));
  return coefficients;
}();
/// (2^u - 1) / u for 0 <= u < 1: minimax in relative error (1.2e-8).
inline constexpr float exponential_minus_1_fraction[] = {6.931471721e-01f, 2.402271382e-01f, 5.549656506e-02f,
                                                         9.650650991e-03f, 1.271005683e-03f, 2.074557979e-04f};

/// tanh x and its slope, both within a few units in the last place, also where tanh is nearly 1.
template <class A>
struct HyperbolicTangent {
  using V = Vector<A>;

  static constexpr A argument_scale = A(1);  ///< of() expects x times this

  V value;
  V magnitude;  ///< of the value
  V divisor;    ///< e^(2 |x|) + 1

  [[gnu::always_inline]] static HyperbolicTangent of(V x) {
    using Bits = typename V::UnsignedBits;
    // tanh |x| = e / (e + 2) with e = e^(2 |x|) - 1, computed as 2^n (e^r - 1) + (2^n - 1) to avoid cancellation near
    // 0.
    constexpr A largest = sizeof(A) == 8 ? A(20) : A(10);
    V const one = V::of(A(1)), two = V::of(A(2));
    Bits const sign = reinterpret_cast<Bits>(V::of(A(-0.0)).native);
    // -|x|, bounded. NaN stays NaN.
    V const negative =
        larger(V::of(-largest), V{reinterpret_cast<typename V::Native>(sign | reinterpret_cast<Bits>(x.native))});
    V e, divisor;
#if defined(__AVX512DQ__)
    if constexpr (std::same_as<A, float>) {
      constexpr auto all = static_cast<__mmask16>(-1);
      V const factor = V::of(-0x1.715476p+1f), y = negative * factor;  // 2 |x| / ln 2, rounded
      V const fraction{_mm512_maskz_reduce_ps(all, y.native, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
      V const power{_mm512_maskz_scalef_ps(all, one.native, y.native)};
      e = multiply_add(power, polynomial(exponential_minus_1_fraction, fraction) * fraction, power - one);
      // The slope alone needs the rounding errors of y and of the factor. Not multiply_add: GCC would compute y - y.
      V const rounding{_mm512_maskz_fmsub_ps(all, negative.native, factor.native, y.native)};
      V const error = multiply_add(rounding, V::of(0x1.62e430p-1f), negative * V::of(-0x1.cab1b6p-26f));
      divisor = multiply_add(e + one, error, e + two);
    } else
#endif
    {
      constexpr A ln2_high = sizeof(A) == 8 ? A(0x1.62e42fee00000p-1) : A(0x1.62e400p-1);
      constexpr A ln2_low = sizeof(A) == 8 ? A(0x1.a39ef35793c76p-33) : A(0x1.7f7d1cp-20);
      V const y = negative * V::of(A(-2)), shift = V::of(rounding_shift<A>);
      V const shifted = multiply_add(y, V::of(log2_of_e<A>), shift), whole = shifted - shift;
      V const r = multiply_add(whole, V::of(-ln2_low), multiply_add(whole, V::of(-ln2_high), y));
      V const power = scaled_by_power(one, shifted);
      e = multiply_add(power, polynomial(expm1_coefficients<A>.of, r) * r, power - one);
      divisor = e + two;
    }
    V const magnitude = e / (e + two);
    Bits const bits = (sign & reinterpret_cast<Bits>(x.native)) | reinterpret_cast<Bits>(magnitude.native);
    return {{reinterpret_cast<typename V::Native>(bits)}, magnitude, divisor};
  }

  [[gnu::always_inline]] V times(V factor) const { return factor * value; }

  /// 1 - tanh^2 x = (1 + |tanh x|) 2 / (e^(2 |x|) + 1), without subtracting nearly equal values.
  [[gnu::always_inline]] V slope() const { return multiply_add(V::of(A(2)), magnitude, V::of(A(2))) / divisor; }
};

/// tanh x = 1 - 2 / (e^(2 x) + 1), in fewer instructions: the value has an absolute error of at most 2^-21, the slope
/// 1 - tanh^2 x a relative error of at most 2^-18 for |x| <= 9.
struct ShortTangent {
  using V = Vector<float>;

  static constexpr float argument_scale = 2 * log2_of_e<float>;

  V power;  ///< e^(2 x), at most 2^64
  V rest;   ///< 1 - tanh x

  /// `scaled`: x times argument_scale.
  [[gnu::always_inline]] static ShortTangent of(V scaled) {
    V const half = V::of(0.5f), one = V::of(1);
    // The bound keeps `power` finite; 1 - tanh is negligible above. NaN, the second operand, stays NaN.
    V const power = exponential2(smaller(V::of(64), scaled)), divisor = multiply_add(power, half, half);
#if defined(__AVX512F__)
    // One step of Newton's method from 14 bits, as a division keeps the multipliers waiting.
    V const guess{_mm512_maskz_rcp14_ps(static_cast<__mmask16>(-1), divisor.native)};
    return {power, multiply_add(guess, subtract_product(one, divisor, guess), guess)};
#else
    return {power, one / divisor};
#endif
  }

  [[gnu::always_inline]] V times(V factor) const { return subtract_product(factor, factor, rest); }

  /// (1 - tanh x) (1 + tanh x), without subtracting nearly equal values.
  [[gnu::always_inline]] V slope() const { return rest * (power * rest); }
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
