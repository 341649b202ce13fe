#pragma once
// Online softmax of one query row; keys may arrive in blocks, in any order.

#include <cmath>
#include <concepts>
#include <limits>

#include "annulus/numerics/merge.hpp"

namespace annulus {

/// Running maximum of the logits and sum of exp(logit - maximum). The caller accumulates its values relative to the
/// same maximum, un-normalised until the end.
template <std::floating_point A>
struct SoftmaxRow {
  A maximum = empty_row<A>;
  A sum = A(0);

  /// Raises the maximum to at least `logit`; returns the factor that rescales values accumulated before.
  A raise(A logit) {
    A const raised = std::fmax(maximum, logit);
    A const factor = rescale(maximum, raised);
    maximum = raised;
    sum *= factor;
    return factor;
  }

  /// exp(logit - maximum), for logits not above the maximum; 0 for a logit of -inf.
  A weight(A logit) const { return rescale(logit, maximum); }

  /// Factors that rescale the accumulated values of this part and of the other one.
  struct Factors {
    A own, other;
  };
  /// Merges another part of the row.
  Factors merge(SoftmaxRow const& other) {
    A const own = raise(other.maximum);
    A const factor = rescale(other.maximum, maximum);
    sum += factor * other.sum;
    return {own, factor};
  }

  /// log of the sum of exp(logit) over all keys seen; -inf for an empty row.
  A lse() const { return sum == A(0) ? empty_row<A> : maximum + std::log(sum); }

  /// Rounding error of the sum in lse(): lse() + lse_remainder() is exactly maximum + log(sum). 0 for an infinite
  /// lse().
  A lse_remainder() const {
    A const rounded = lse();
    if (!std::isfinite(rounded)) return A(0);
    // Knuth's two-sum, because either term may be the larger one.
    A const logarithm = std::log(sum), taken = rounded - maximum;
    return (maximum - (rounded - taken)) + (logarithm - taken);
  }

  /// 1 / sum; 0 for an empty row, so that its output is 0.
  A normaliser() const { return sum == A(0) ? A(0) : A(1) / sum; }
};

}  // namespace annulus
