#pragma once
// SIMD vector type for every instruction set: the vector extensions of GCC and clang, as wide as the target's
// registers. Intrinsics are used only for single instructions that the extensions cannot express.

#include <Eigen/Core>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "annulus/backend/cpu/simd/target.hpp"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// A register of `lanes` elements.
template <std::floating_point A>
struct Vector {
  using Integer = std::conditional_t<sizeof(A) == 8, std::int64_t, std::int32_t>;
  typedef A Native __attribute__((vector_size(vector_bytes)));
  typedef Integer Bits __attribute__((vector_size(vector_bytes)));
  typedef std::make_unsigned_t<Integer> UnsignedBits __attribute__((vector_size(vector_bytes)));
  static constexpr int lanes = vector_bytes / static_cast<int>(sizeof(A));

  Native native;

  /// Loads and stores the bits of `lanes` elements A, or of as many bytes of other elements.
  [[gnu::always_inline]] static Vector load(void const* from) {
    Vector v;
    std::memcpy(&v.native, from, sizeof v.native);
    return v;
  }
  [[gnu::always_inline]] void store(void* to) const { std::memcpy(to, &native, sizeof native); }
  [[gnu::always_inline]] static Vector of(A value) { return {value - Native{}}; }
  [[gnu::always_inline]] static Vector zero() { return {Native{}}; }

  [[gnu::always_inline]] friend Vector operator+(Vector a, Vector b) { return {a.native + b.native}; }
  [[gnu::always_inline]] friend Vector operator-(Vector a, Vector b) { return {a.native - b.native}; }
  [[gnu::always_inline]] friend Vector operator*(Vector a, Vector b) { return {a.native * b.native}; }
  [[gnu::always_inline]] friend Vector operator/(Vector a, Vector b) { return {a.native / b.native}; }
};

/// Mask: true or false per lane.
template <class A>
struct Lanes {
  typename Vector<A>::Bits bits;  ///< all ones or zero

  [[gnu::always_inline]] friend Lanes operator&(Lanes a, Lanes b) { return {a.bits & b.bits}; }
};

/// a * b + c; one instruction where the target has it.
template <class A>
[[gnu::always_inline]] inline Vector<A> multiply_add(Vector<A> a, Vector<A> b, Vector<A> c) {
  return {a.native * b.native + c.native};
}

/// c - a * b; one instruction where the target has it.
template <class A>
[[gnu::always_inline]] inline Vector<A> subtract_product(Vector<A> c, Vector<A> a, Vector<A> b) {
  return {c.native - a.native * b.native};
}

/// Whether fused_multiply_add() rounds once.
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA)
inline constexpr bool fuses_multiply_add = true;
#else
inline constexpr bool fuses_multiply_add = false;
#endif

/// a * b + c, rounded once where the target can. Compilers decide whether multiply_add() is.
template <class A>
[[gnu::always_inline]] inline Vector<A> fused_multiply_add(Vector<A> a, Vector<A> b, Vector<A> c) {
  [[maybe_unused]] constexpr bool is_float = std::same_as<A, float>;
#if defined(__AVX512F__)
  if constexpr (is_float)
    return {_mm512_fmadd_ps(a.native, b.native, c.native)};
  else
    return {_mm512_fmadd_pd(a.native, b.native, c.native)};
#elif defined(__FMA__)
  if constexpr (is_float)
    return {_mm256_fmadd_ps(a.native, b.native, c.native)};
  else
    return {_mm256_fmadd_pd(a.native, b.native, c.native)};
#elif defined(__ARM_FEATURE_FMA)
  if constexpr (is_float)
    return {vfmaq_f32(c.native, a.native, b.native)};
  else
    return {vfmaq_f64(c.native, a.native, b.native)};
#else
  return multiply_add(a, b, c);
#endif
}

/// Makes the compiler keep a native vector in a register, neither recompute nor reload it.
template <class Native>
[[gnu::always_inline]] inline void keep_in_register(Native& vector) {
#if defined(__AVX512F__)
  asm("" : "+v"(vector));
#elif defined(__SSE2__)
  asm("" : "+x"(vector));
#elif defined(__ARM_NEON)
  asm("" : "+w"(vector));
#endif
}

/// a * b, rounded: the compiler does not contract the product into a fused multiply-add.
template <class A>
[[gnu::always_inline]] inline Vector<A> rounded_product(Vector<A> a, Vector<A> b) {
  Vector<A> product = a * b;
  keep_in_register(product.native);
  return product;
}

template <class A>
[[gnu::always_inline]] inline Lanes<A> less(Vector<A> a, Vector<A> b) {
  return {a.native < b.native};
}
template <class A>
[[gnu::always_inline]] inline Lanes<A> less_or_equal(Vector<A> a, Vector<A> b) {
  return {a.native <= b.native};
}

template <class A>
[[gnu::always_inline]] inline Vector<A> select(Lanes<A> where, Vector<A> a, Vector<A> b) {
  return {where.bits ? a.native : b.native};
}

/// The larger of each lane; b where either is NaN.
template <class A>
[[gnu::always_inline]] inline Vector<A> larger(Vector<A> a, Vector<A> b) {
#if defined(__AVX512F__)
  // Masked intrinsics, here and elsewhere: GCC 12 warns of an uninitialised register in the unmasked ones.
  if constexpr (std::same_as<A, float>)
    return {_mm512_maskz_max_ps(static_cast<__mmask16>(-1), a.native, b.native)};
  else
    return {_mm512_maskz_max_pd(static_cast<__mmask8>(-1), a.native, b.native)};
#else
  return {a.native > b.native ? a.native : b.native};
#endif
}

/// The smaller of each lane; b where either is NaN.
template <class A>
[[gnu::always_inline]] inline Vector<A> smaller(Vector<A> a, Vector<A> b) {
#if defined(__AVX512F__)
  if constexpr (std::same_as<A, float>)
    return {_mm512_maskz_min_ps(static_cast<__mmask16>(-1), a.native, b.native)};
  else
    return {_mm512_maskz_min_pd(static_cast<__mmask8>(-1), a.native, b.native)};
#else
  return {a.native < b.native ? a.native : b.native};
#endif
}

/// True if any lane is true.
template <class A>
[[gnu::always_inline]] inline bool any(Lanes<A> lanes) {
#if defined(__AVX512F__)
  auto const bits = reinterpret_cast<__m512i>(lanes.bits);
  return _mm512_test_epi64_mask(bits, bits) != 0;
#else
  std::uint64_t words[vector_bytes / 8], sum = 0;
  std::memcpy(words, &lanes.bits, sizeof words);
  for (std::uint64_t word : words) sum |= word;
  return sum != 0;
#endif
}

// Conversion of a vector of halves by one instruction, to nearest, ties to even.
#if defined(__AVX512F__)
#define ANNULUS_CPU_CONVERTS_HALVES
using Halves = __m256i;
[[gnu::always_inline]] inline Vector<float> of_halves(Halves halves) {
  return {_mm512_maskz_cvtph_ps(static_cast<__mmask16>(-1), halves)};
}
[[gnu::always_inline]] inline Halves to_halves(Vector<float> v) {
  return _mm512_maskz_cvtps_ph(static_cast<__mmask16>(-1), v.native, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__F16C__)
#define ANNULUS_CPU_CONVERTS_HALVES
using Halves = __m128i;
[[gnu::always_inline]] inline Vector<float> of_halves(Halves halves) { return {_mm256_cvtph_ps(halves)}; }
[[gnu::always_inline]] inline Halves to_halves(Vector<float> v) {
  return _mm256_cvtps_ph(v.native, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#elif defined(__aarch64__)
#define ANNULUS_CPU_CONVERTS_HALVES
using Halves = float16x4_t;
[[gnu::always_inline]] inline Vector<float> of_halves(Halves halves) { return {vcvt_f32_f16(halves)}; }
[[gnu::always_inline]] inline Halves to_halves(Vector<float> v) { return vcvt_f16_f32(v.native); }
#endif

/// Loads a vector of contiguous elements, converted to A.
template <class A, class T>
[[gnu::always_inline]] inline Vector<A> load_widened(T const* from) {
  constexpr int lanes = Vector<A>::lanes;
  if constexpr (std::same_as<A, T>) {
    return Vector<A>::load(from);
  } else if constexpr (std::same_as<T, Eigen::bfloat16> && std::same_as<A, float>) {
    typedef std::uint16_t Short __attribute__((vector_size(vector_bytes / 2)));
    typedef std::uint32_t Whole __attribute__((vector_size(vector_bytes)));
    Short bits;
    std::memcpy(&bits, from, sizeof bits);
#if defined(__AVX512F__)
    // GCC 12 would convert the two halves and join them.
    auto const whole = reinterpret_cast<Whole>(
        _mm512_maskz_cvtepu16_epi32(static_cast<__mmask16>(-1), reinterpret_cast<__m256i>(bits)));
#else
    auto const whole = __builtin_convertvector(bits, Whole);
#endif
    return {reinterpret_cast<typename Vector<A>::Native>(whole << 16)};
#if defined(ANNULUS_CPU_CONVERTS_HALVES)
  } else if constexpr (std::same_as<T, Eigen::half> && std::same_as<A, float>) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return of_halves(halves);
#endif
  } else {
    A widened[lanes];
    for (int i = 0; i < lanes; ++i) widened[i] = static_cast<A>(from[i]);
    return Vector<A>::load(widened);
  }
}

/// Stores the elements, converted to T, contiguously: the bits of a cast of each.
template <class T, class A>
[[gnu::always_inline]] inline void store_narrowed(Vector<A> v, T* to) {
  if constexpr (std::same_as<A, T>) {
    v.store(to);
  } else if constexpr (std::same_as<T, Eigen::bfloat16> && std::same_as<A, float>) {
    typedef std::uint16_t Short __attribute__((vector_size(vector_bytes / 2)));
    typedef std::uint32_t Whole __attribute__((vector_size(vector_bytes)));
    auto const bits = reinterpret_cast<Whole>(v.native);
    // To nearest, ties to even. NaN keeps its sign alone.
    Whole const rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = (bits >> 16 & 0x8000) | 0x7fc0;
    Short const narrow = __builtin_convertvector(v.native == v.native ? rounded : nan, Short);
    std::memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
#if defined(ANNULUS_CPU_CONVERTS_HALVES)
  } else if constexpr (std::same_as<T, Eigen::half> && std::same_as<A, float>) {
    Halves const halves = to_halves(v);
    std::memcpy(static_cast<void*>(to), &halves, sizeof halves);
#endif
  } else {
    A elements[Vector<A>::lanes];
    v.store(elements);
    for (int i = 0; i < Vector<A>::lanes; ++i) to[i] = static_cast<T>(elements[i]);
  }
}

/// The same for results of arithmetic while denormals are flushed to 0, as the bfloat16 instruction takes them for 0.
template <class T, class A>
[[gnu::always_inline]] inline void store_result(Vector<A> v, T* to) {
#if defined(__AVX512BF16__)
  if constexpr (std::same_as<T, Eigen::bfloat16>)
    if (_mm512_cmp_ps_mask(v.native, v.native, _CMP_UNORD_Q) == 0) {  // of NaN it would keep more than the sign
      auto const narrow = _mm512_cvtneps_pbh(v.native);
      std::memcpy(static_cast<void*>(to), &narrow, sizeof narrow);
      return;
    }
#endif
  store_narrowed(v, to);
}

template <int First, class A, std::size_t... I>
[[gnu::always_inline]] inline Vector<A> alternate(Vector<A> a, Vector<A> b, std::index_sequence<I...>) {
  constexpr int lanes = Vector<A>::lanes;
  return {__builtin_shufflevector(a.native, b.native,
                                  (First + static_cast<int>(I) / 2 + static_cast<int>(I) % 2 * lanes)...)};
}

/// Reorders R rows of `lanes` elements to row 0 element 0, row 1 element 0, ..., row 0 element 1, ...; R is a power of
/// two. With as many rows as lanes this is a transpose.
template <int R, class A>
[[gnu::always_inline]] inline void interleave(Vector<A> (&rows)[R]) {
  constexpr int lanes = Vector<A>::lanes;
  using Sequence = std::make_index_sequence<static_cast<std::size_t>(lanes)>;
#pragma GCC unroll 6
  for (int stage = 1; stage < R; stage *= 2) {
    Vector<A> next[R];
#pragma GCC unroll 16
    for (int i = 0; i < R / 2; ++i) {
      next[2 * i] = alternate<0>(rows[i], rows[i + R / 2], Sequence());
      next[2 * i + 1] = alternate<lanes / 2>(rows[i], rows[i + R / 2], Sequence());
    }
#pragma GCC unroll 32
    for (int i = 0; i < R; ++i) rows[i] = next[i];
  }
}

/// Sets FTZ and DAZ of this thread for the lifetime of the object: denormal operands and results become 0. They cost
/// hundreds of cycles each on some processors, and weights that small add nothing. No effect without SSE2.
class FlushDenormals {
#if defined(__SSE2__)
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(FlushDenormals const&) = delete;
  FlushDenormals& operator=(FlushDenormals const&) = delete;

 private:
  unsigned before_;
#endif
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
