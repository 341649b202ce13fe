#pragma once
// Dropout on attention probabilities as a pure function of position: the same for every number of ranks, every
// sharding, every backend, and in the backward pass.

#include <cstdint>

#include "annulus/core/index.hpp"
#include "annulus/numerics/philox.hpp"

namespace annulus {

/// Each probability is dropped with `probability` (0 <= probability < 1, default 0: none); kept ones are divided by
/// 1 - probability. The log-sum-exp is that of all keys, dropped or not.
struct Dropout {
  double probability = 0;
  std::uint64_t seed = 0;

  bool operator==(Dropout const&) const = default;

  constexpr bool active() const { return probability > 0; }
  constexpr double keep_scale() const { return 1.0 / (1.0 - probability); }

  /// True if the pair is kept. `query` (counted from the query offset) and `key` are global positions.
  /// The counter is (batch, head, query, key / 4), the word key % 4; kept iff word >= probability * 2^32.
  constexpr bool keeps(Index batch, Index head, Index query, Index key) const {
    auto const words = philox4x32({static_cast<std::uint32_t>(batch), static_cast<std::uint32_t>(head),
                                   static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(key / 4)},
                                  {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
    return words[static_cast<std::size_t>(key % 4)] >= static_cast<std::uint64_t>(probability * 4294967296.0);
  }
};

/// Positions must stay below this for the counter to tell them apart.
inline constexpr Index dropout_position_limit = Index{1} << 32;

}  // namespace annulus
