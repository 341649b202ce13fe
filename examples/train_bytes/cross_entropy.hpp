#pragma once
// Cross entropy of the next byte.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "matrix.hpp"

namespace train_bytes {

/// Turns the logits of each row into the gradient of `weight` times the sum of the cross entropies, and returns the sum
/// without the weight, in nats. targets: the byte that follows each row.
///
/// The sum is in double, so that its rounding does not depend on how the rows are divided among the ranks.
template <class T>
double cross_entropy(Matrix<T>& logits, std::vector<std::uint8_t> const& targets, double weight) {
  double sum = 0;
  for (Index row = 0; row < logits.rows(); ++row) {
    auto values = logits.row(row).array();
    Index const target = targets[static_cast<std::size_t>(row)];
    double const target_logit = static_cast<double>(values[target]);
    T const largest = values.maxCoeff();
    values = (values - largest).exp();
    double const total = static_cast<double>(values.sum());
    sum += static_cast<double>(largest) + std::log(total) - target_logit;
    values *= static_cast<T>(weight / total);
    values[target] -= static_cast<T>(weight);
  }
  return sum;
}

}  // namespace train_bytes
