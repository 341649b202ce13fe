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
struct PhiloxWords {
  typedef std::uint64_t Native __attribute__((vector_size(vector_bytes)));
  Native native;

  [[gnu::always_inline]] friend PhiloxWords operator^(PhiloxWords a, PhiloxWords b) { return {a.native ^ b.native}; }
  [[gnu::always_inline]] friend PhiloxWords operator^(PhiloxWords a, std::uint32_t b) {
    return {a.native ^ std::uint64_t{b}};
  }
};

[[gnu::always_inline]] inline annulus::WideProduct<PhiloxWords> multiply_wide(PhiloxWords a, std::uint32_t b) {
  using Native = PhiloxWords::Native;
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
  // AVX without AVX2 has no multiplication of wide integer vectors.
  Native const product = (a.native & std::uint64_t{0xffffffff}) * std::uint64_t{b};
#endif
  return {{product >> 32}, {product}};
}

/// Random numbers of a vector of queries.
template <class A>
class PhiloxQueries {
  using Words = typename Vector<A>::UnsignedBits;
  /// PhiloxWords for one vector of elements A: two for float, those of even and of odd lanes; one for double.
  static constexpr int parts = sizeof(A) == 8 ? 1 : 2;

 public:
  /// heads, queries: one per lane, below 2^32.
  PhiloxQueries(std::uint32_t batch, Words heads, Words queries, std::array<std::uint32_t, 2> key) : key_(key) {
    for (int p = 0; p < parts; ++p) {
      batch_[p] = {PhiloxWords::Native{} + batch};
      heads_[p] = {reinterpret_cast<PhiloxWords::Native>(heads) >> (32 * p)};
      queries_[p] = {reinterpret_cast<PhiloxWords::Native>(queries) >> (32 * p)};
    }
  }

  /// Sets numbers[i] to the random numbers of key 4 * group + i, one for each lane.
  [[gnu::always_inline]] void generate(std::uint32_t group, Words* numbers) const {
    constexpr std::uint64_t low = 0xffffffff;
    std::array<PhiloxWords, 4> words[parts];
    for (int p = 0; p < parts; ++p)
      words[p] =
          annulus::philox4x32<PhiloxWords>({batch_[p], heads_[p], queries_[p], {PhiloxWords::Native{} + group}}, key_);
    for (std::size_t i = 0; i < 4; ++i) {
      PhiloxWords::Native joined = words[0][i].native & low;
      if constexpr (parts == 2) joined |= words[1][i].native << 32;
      numbers[i] = reinterpret_cast<Words>(joined);
    }
  }

 private:
  PhiloxWords batch_[parts], heads_[parts], queries_[parts];
  std::array<std::uint32_t, 2> key_;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
