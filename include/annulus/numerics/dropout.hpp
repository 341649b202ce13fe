#pragma once
// Dropout on attention probabilities as a pure function of position: the same for any number of ranks, every
// sharding, every backend, and in the backward pass.

#include <array>
#include <cstdint>

#include "annulus/core/dropout.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

/// The 64-bit product of two 32-bit numbers, as two words.
template <class Word>
struct WideProduct {
  Word high, low;  ///< upper and lower 32 bits
};

/// The product of two numbers.
constexpr WideProduct<std::uint32_t> multiply_wide(std::uint32_t a, std::uint32_t b) {
  std::uint64_t const product = std::uint64_t{a} * b;
  return {static_cast<std::uint32_t>(product >> 32), static_cast<std::uint32_t>(product)};
}

/// Philox4x32-10, a counter-based generator, so that a random number is a pure function of its position: ten rounds on
/// a
/// 128-bit counter with a 64-bit key give four independent 32-bit numbers. Salmon, Moraes, Dror, Shaw, "Parallel random
/// numbers: as easy as 1, 2, 3", SC 2011, section 3.3 and table 2. Word: std::uint32_t, or a SIMD vector of such
/// numbers with ^ (also by a number) and multiply_wide(vector, number) in its namespace.
template <class Word = std::uint32_t>
[[gnu::always_inline]] constexpr std::array<Word, 4> philox4x32(std::array<Word, 4> counter,
                                                                std::array<std::uint32_t, 2> key) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#elif !defined(__CUDACC__)
#pragma GCC unroll 10
#endif
  for (int round = 0; round < 10; ++round) {
    auto const product0 = multiply_wide(counter[0], std::uint32_t{0xD2511F53u});
    auto const product1 = multiply_wide(counter[2], std::uint32_t{0xCD9E8D57u});
    counter = {product1.high ^ counter[1] ^ key[0], product1.low, product0.high ^ counter[3] ^ key[1], product0.low};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

/// Of the random numbers of 32 bits, those from this one on keep their pair.
constexpr std::uint64_t dropout_threshold(Dropout const& dropout) {
  return static_cast<std::uint64_t>(dropout.probability * 4294967296.0);
}

/// Dropout decisions of one query row. Consecutive calls for keys that share a counter cost one call of the generator.
class DropoutRow {
 public:
  /// The row of a query, given by batch item, query head and global position.
  constexpr DropoutRow(Dropout const& dropout, Index batch, Index head, Index query)
      : counter_{static_cast<std::uint32_t>(batch), static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(query),
                 0},
        key_{static_cast<std::uint32_t>(dropout.seed), static_cast<std::uint32_t>(dropout.seed >> 32)},
        threshold_(dropout_threshold(dropout)) {}

  /// True if the key is kept: word key % 4 of counter (batch, head, query, key / 4) is >= probability * 2^32.
  constexpr bool keeps(Index key) {
    auto const group = static_cast<std::uint32_t>(key / 4);
    if (!known_ || group != counter_[3]) {
      counter_[3] = group;
      words_ = philox4x32(counter_, key_);
      known_ = true;
    }
    return words_[static_cast<std::size_t>(key % 4)] >= threshold_;
  }

 private:
  std::array<std::uint32_t, 4> counter_, words_{};
  std::array<std::uint32_t, 2> key_;
  std::uint64_t threshold_;
  bool known_ = false;
};

constexpr bool Dropout::keeps(Index batch, Index head, Index query, Index key) const {
  return DropoutRow(*this, batch, head, query).keeps(key);
}

/// Exclusive upper bound of positions: the counter holds 32 bits of a position.
inline constexpr Index dropout_position_limit = Index{1} << 32;

}  // namespace annulus
