#pragma once
// Merge rule of partial softmax results: the single definition, including that of an empty part.
//
// A part is empty if it saw no key: its maximum and its lse are -inf and its values are 0. Merging an empty part
// changes nothing, and merging two empty parts gives an empty part. All logarithms are natural.

#include <cmath>
#include <concepts>
#include <limits>
#include <span>

#include "annulus/core/check.hpp"
#include "annulus/core/error.hpp"

namespace annulus {

/// Maximum and lse of a row that saw no key.
template <std::floating_point A>
inline constexpr A empty_row = -std::numeric_limits<A>::infinity();

/// exp(from - to): converts a sum relative to the maximum `from` to one relative to the maximum `to`. 0 for an empty
/// `from`, because exp(-inf - -inf) would be NaN.
template <std::floating_point A>
A rescale(A from, A to) {
  return from == empty_row<A> ? A(0) : std::exp(from - to);
}

/// exp(logit - (lse + remainder)): the probability of a logit, where lse is the rounded log-sum-exp of its row and
/// remainder is the exact value minus the rounded one. For a huge lse the remainder can be as large as the logarithm of
/// the number of keys, so it must not be omitted. 0 for a logit of -inf.
template <std::floating_point A>
A probability(A logit, A lse, A remainder) {
  return logit == empty_row<A> ? A(0) : std::exp((logit - lse) - remainder);
}

/// Weights that merge two normalised partial outputs: output = first * output_a + second * output_b.
template <std::floating_point A>
struct MergeWeights {
  A lse;
  A first;
  A second;
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
  check<ShapeError>(into.size() == from.size(), "merge_rows: rows of ", into.size(), " and ", from.size(),
                    " elements; they must be equal");
  auto const weights = merge_weights(into_lse, from_lse);
  for (std::size_t d = 0; d < into.size(); ++d)
    into[d] = static_cast<T>(weights.first * static_cast<A>(into[d]) + weights.second * static_cast<A>(from[d]));
  into_lse = weights.lse;
}

}  // namespace annulus
