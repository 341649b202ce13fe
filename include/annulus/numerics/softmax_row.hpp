#pragma once
// The running softmax of one query row: keys arrive in blocks, in any order.

#include <cmath>
#include <concepts>
#include <limits>

#include "annulus/numerics/merge.hpp"

namespace annulus {

/// Maximum of the logits seen and sum of exp(logit - maximum). The values that the caller accumulates beside it are
/// relative to the same maximum and stay un-normalised until the end.
template <std::floating_point A>
struct SoftmaxRow {
  A maximum = empty_row<A>;
  A sum = A(0);

  /// Lets the maximum rise to at least `logit`; returns the factor for what was accumulated before.
  A raise(A logit) {
    A const raised = std::fmax(maximum, logit);
    A const factor = rescale(maximum, raised);
    maximum = raised;
    sum *= factor;
    return factor;
  }

  /// exp(logit - maximum), for logits not above the maximum; 0 for a logit of -inf.
  A weight(A logit) const { return rescale(logit, maximum); }

  /// Joins another part; returns the factors for this part's and the other part's accumulated values.
  struct Factors {
    A own, other;
  };
  Factors merge(SoftmaxRow const& other) {
    A const own = raise(other.maximum);
    A const factor = rescale(other.maximum, maximum);
    sum += factor * other.sum;
    return {own, factor};
  }

  /// log of the sum of exp(logit) over all keys seen; -inf for an empty row.
  A lse() const { return sum == A(0) ? empty_row<A> : maximum + std::log(sum); }

  /// What the rounding of that sum takes: lse() + lse_remainder() is maximum + log(sum) without error. 0 where lse() is
  /// not finite.
  A lse_remainder() const {
    A const rounded = lse();
    if (!std::isfinite(rounded)) return A(0);
    // Knuth's two-sum: either of the terms may be the larger one.
    A const logarithm = std::log(sum), taken = rounded - maximum;
    return (maximum - (rounded - taken)) + (logarithm - taken);
  }

  /// 1 / sum; 0 for an empty row, so that its output is 0.
  A normaliser() const { return sum == A(0) ? A(0) : A(1) / sum; }
};

}  // namespace annulus
