#pragma once
// The random numbers of dropout for a vector of queries at a time: the same bits as annulus::philox4x32 gives for each.

#include <array>
#include <cstdint>

#include "annulus/backend/cpu/simd/vector.hpp"
#include "annulus/numerics/dropout.hpp"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// A vector of 32-bit numbers, each in the low half of 64 bits; the high halves are arbitrary.
struct PhiloxWord {
  typedef std::uint64_t Native __attribute__((vector_size(vector_bytes)));
  Native native;

  [[gnu::always_inline]] friend PhiloxWord operator^(PhiloxWord a, PhiloxWord b) { return {a.native ^ b.native}; }
  [[gnu::always_inline]] friend PhiloxWord operator^(PhiloxWord a, std::uint32_t b) {
    return {a.native ^ std::uint64_t{b}};
  }
};

[[gnu::always_inline]] inline annulus::WideProduct<PhiloxWord> multiply_wide(PhiloxWord a, std::uint32_t b) {
  using Native = PhiloxWord::Native;
#if defined(__AVX512F__)
  auto const product = reinterpret_cast<Native>(_mm512_maskz_mul_epu32(
      static_cast<__mmask8>(-1), reinterpret_cast<__m512i>(a.native), reinterpret_cast<__m512i>(Native{} + b)));
#elif defined(__AVX2__)
  auto const product = reinterpret_cast<Native>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a.native), reinterpret_cast<__m256i>(Native{} + b)));
#elif defined(__SSE2__) && !defined(__AVX__)
  auto const product = reinterpret_cast<Native>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a.native), reinterpret_cast<__m128i>(Native{} + b)));
#else
  Native const product = (a.native & std::uint64_t{0xffffffff}) * std::uint64_t{b};
#endif
  return {{product >> 32}, {product}};
}

/// Random numbers of a vector of queries.
template <class A>
class PhiloxRow {
  using Words = typename Vector<A>::UnsignedBits;
  /// Vectors of 64-bit elements for one vector of elements A: those at even and at odd places, or all.
  static constexpr int parts = sizeof(A) == 8 ? 1 : 2;

 public:
  /// heads, queries: one per lane, below 2^32.
  PhiloxRow(std::uint32_t batch, Words heads, Words queries, std::array<std::uint32_t, 2> key) : key_(key) {
    for (int p = 0; p < parts; ++p) {
      batch_[p] = {PhiloxWord::Native{} + batch};
      heads_[p] = {reinterpret_cast<PhiloxWord::Native>(heads) >> (32 * p)};
      queries_[p] = {reinterpret_cast<PhiloxWord::Native>(queries) >> (32 * p)};
    }
  }

  /// Sets numbers[i] to the number of key 4 * group + i, in each lane.
  [[gnu::always_inline]] void generate(std::uint32_t group, Words* numbers) const {
    constexpr std::uint64_t low = 0xffffffff;
    std::array<PhiloxWord, 4> words[parts];
    for (int p = 0; p < parts; ++p)
      words[p] =
          annulus::philox4x32<PhiloxWord>({batch_[p], heads_[p], queries_[p], {PhiloxWord::Native{} + group}}, key_);
    for (std::size_t i = 0; i < 4; ++i) {
      PhiloxWord::Native joined = words[0][i].native & low;
      if constexpr (parts == 2) joined |= words[1][i].native << 32;
      numbers[i] = reinterpret_cast<Words>(joined);
    }
  }

 private:
  PhiloxWord batch_[parts], heads_[parts], queries_[parts];
  std::array<std::uint32_t, 2> key_;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
