#pragma once
// Dropout rule: which attention probabilities are set to 0. The random numbers behind it are in numerics/dropout.hpp.

#include <cstdint>

#include "annulus/core/index.hpp"

namespace annulus {

/// Dropout rule: each attention probability is set to 0 with `probability` (0 <= probability < 1, default 0: no
/// dropout); kept ones are divided by 1 - probability. The log-sum-exp includes dropped keys.
struct Dropout {
  double probability = 0;  ///< 0 <= probability < 1
  std::uint64_t seed = 0;  ///< chooses the pairs that are dropped

  bool operator==(Dropout const&) const = default;

  constexpr bool active() const { return probability > 0; }  ///< true if any pair is dropped
  /// Factor of the probabilities that are kept.
  constexpr double keep_scale() const { return 1.0 / (1.0 - probability); }

  /// True if the pair is kept. `query` (counted from the query offset) and `key` are global positions. Defined in
  /// numerics/dropout.hpp.
  constexpr bool keeps(Index batch, Index head, Index query, Index key) const;
};

}  // namespace annulus
