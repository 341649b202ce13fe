#pragma once
// Online softmax of query rows: the single definition of logits, of the merge rule of partial results, and of the empty
// part. Functions of V are for numbers and for SIMD vectors of them; a vector type has finite_maximum(V) and
// exponential(V) in its namespace.
//
// A part is empty if it saw no key: its maximum and its lse are -inf and its values are 0. Merging an empty part
// changes nothing, and merging two empty parts gives an empty part. All logarithms are natural.

#include <cmath>
#include <concepts>
#include <limits>
#include <span>

#include "annulus/core/error.hpp"
#include "annulus/core/host_device.hpp"

namespace annulus {

/// logit = cap(x) with x = product * scale; cap(x) = softcap * tanh(x / softcap), or x where softcap is 0.
template <std::floating_point A>
struct LogitRule {
  A scale;    ///< of the product of query and key
  A softcap;  ///< 0: no cap

  /// The logit before any bias.
  ANNULUS_HOST_DEVICE A operator()(A product) const { return cap(product * scale); }
  /// The soft cap alone.
  ANNULUS_HOST_DEVICE A cap(A x) const { return softcap > A(0) ? softcap * std::tanh(x / softcap) : x; }

  /// d logit / d product, given the logit before any bias.
  ANNULUS_HOST_DEVICE A slope(A capped) const {
    if (!(softcap > A(0))) return scale;
    A const tanh = capped / softcap;
    return scale * (A(1) - tanh * tanh);
  }
};

/// Maximum and lse of a row that saw no key.
template <std::floating_point A>
inline constexpr A empty_row = -std::numeric_limits<A>::infinity();

/// A maximum to subtract from logits: the lowest finite number for an empty row, because -inf - -inf would be NaN.
template <std::floating_point A>
constexpr A finite_maximum(A maximum) {
  return maximum == empty_row<A> ? std::numeric_limits<A>::lowest() : maximum;
}

namespace detail {

template <std::floating_point A>
ANNULUS_HOST_DEVICE A exponential(A x) {
  return std::exp(x);
}

}  // namespace detail

/// exp(from - to): converts a sum relative to the maximum `from` to one relative to the maximum `to`, which is not
/// below it. 0 for an empty `from`.
template <class V>
[[gnu::always_inline]] ANNULUS_HOST_DEVICE inline V rescale(V from, V to) {
  using detail::exponential;
  return exponential(from - finite_maximum(to));
}

/// exp(exponent - remainder): a probability, where exponent is logit - lse, lse is the rounded log-sum-exp of the row,
/// and remainder is the exact value minus the rounded one. For a huge lse the remainder can be as large as the
/// logarithm of the number of keys, so it must not be omitted.
template <class V>
[[gnu::always_inline]] ANNULUS_HOST_DEVICE inline V probability(V exponent, V remainder) {
  using detail::exponential;
  return exponential(exponent - remainder);
}

/// The probability of a logit; 0 for a logit of -inf, also in an empty row.
template <std::floating_point A>
ANNULUS_HOST_DEVICE A probability(A logit, A lse, A remainder) {
  return logit == empty_row<A> ? A(0) : probability(logit - lse, remainder);
}

/// Weights that merge two normalised partial outputs: output = first * output_a + second * output_b.
template <std::floating_point A>
struct MergeWeights {
  A lse;     ///< log-sum-exp of the merged row
  A first;   ///< weight of part a
  A second;  ///< weight of part b
};

/// Weights of two parts with log-sum-exps a and b. Never overflows, however far apart they are.
template <std::floating_point A>
MergeWeights<A> merge_weights(A a, A b) {
  if (a == empty_row<A> && b == empty_row<A>) return {empty_row<A>, A(0), A(0)};
  A const maximum = std::fmax(a, b);
  A const weight_a = rescale(a, maximum), weight_b = rescale(b, maximum);
  A const sum = weight_a + weight_b;
  return {maximum + std::log(sum), weight_a / sum, weight_b / sum};
}

/// Merges the normalised row (`from`, `from_lse`) into (`into`, `into_lse`). Throws ShapeError if the lengths differ.
template <class T, std::floating_point A>
void merge_rows(std::span<T> into, A& into_lse, std::span<T const> from, A from_lse) {
  detail::check<ShapeError>(into.size() == from.size(), "merge_rows: rows of ", into.size(), " and ", from.size(),
                            " elements; they must be equal");
  auto const weights = merge_weights(into_lse, from_lse);
  for (std::size_t d = 0; d < into.size(); ++d)
    into[d] = static_cast<T>(weights.first * static_cast<A>(into[d]) + weights.second * static_cast<A>(from[d]));
  into_lse = weights.lse;
}

/// Running state of one query row, whose keys may arrive in blocks, in any order: maximum of the logits and sum of
/// exp(logit - maximum). The caller accumulates its values relative to the same maximum, un-normalised until the end.
template <std::floating_point A>
struct SoftmaxRow {
  A maximum = empty_row<A>;  ///< of the logits
  A sum = A(0);              ///< of exp(logit - maximum)

  /// Raises the maximum to at least `logit`; returns the factor that rescales values accumulated before.
  ANNULUS_HOST_DEVICE A raise(A logit) {
    A const raised = std::fmax(maximum, logit);
    A const factor = rescale(maximum, raised);
    maximum = raised;
    sum *= factor;
    return factor;
  }

  /// exp(logit - maximum), for logits not above the maximum; 0 for a logit of -inf.
  ANNULUS_HOST_DEVICE A weight(A logit) const { return rescale(logit, maximum); }

  /// Factors that rescale the accumulated values of this part and of the other one.
  struct Factors {
    A own, other;  ///< of this part, of the other one
  };
  /// Merges another part of the row.
  ANNULUS_HOST_DEVICE Factors merge(SoftmaxRow const& other) {
    A const own = raise(other.maximum);
    A const factor = rescale(other.maximum, maximum);
    sum += factor * other.sum;
    return {own, factor};
  }

  /// Merges a part whose maximum is not below this one. Returns the factor that rescales values accumulated before; if
  /// it is 0, they must not be read, as they may be infinite.
  A extend(SoftmaxRow const& part) {
    A const factor = rescale(maximum, part.maximum);
    sum = factor == A(0) ? part.sum : sum * factor + part.sum;
    maximum = part.maximum;
    return factor;
  }

  /// log of the sum of exp(logit) over all keys seen; -inf for an empty row.
  ANNULUS_HOST_DEVICE A lse() const { return sum == A(0) ? empty_row<A> : maximum + std::log(sum); }

  /// Rounding error of the sum in lse(): lse() + lse_remainder() is exactly maximum + log(sum). 0 for an infinite
  /// lse().
  ANNULUS_HOST_DEVICE A lse_remainder() const {
    A const rounded = lse();
    if (!std::isfinite(rounded)) return A(0);
    // Knuth's two-sum, because either term may be the larger one.
    A const logarithm = std::log(sum), taken = rounded - maximum;
    return (maximum - (rounded - taken)) + (logarithm - taken);
  }

  /// 1 / sum; 0 for an empty row, so that its output is 0.
  ANNULUS_HOST_DEVICE A normaliser() const { return sum == A(0) ? A(0) : A(1) / sum; }
};

}  // namespace annulus
