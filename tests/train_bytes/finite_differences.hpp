#pragma once
// Derivatives by finite differences, and operands for tests of the training example.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "support/catch.hpp"
#include "train_bytes/matrix.hpp"

namespace annulus_test {

using train_bytes::Index;

/// Uniform between -1 and 1.
inline train_bytes::Matrix<double> random_matrix(Index rows, Index columns, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  return train_bytes::Matrix<double>::NullaryExpr(rows, columns, [&] { return uniform(engine); });
}

/// d loss() / d value for each element that `values` stores, by four-point central differences. With step 2^-10 the
/// neglected term, step^4 / 30 times the fifth derivative, is 3e-14 times that derivative, and the rounding of a loss
/// of order 1 adds about 1e-13.
template <class Values, class Loss>
train_bytes::Matrix<double> differences(Values& values, Loss&& loss) {
  constexpr double step = 1.0 / 1024;
  train_bytes::Matrix<double> gradient(values.rows(), values.cols());
  for (Index i = 0; i < values.size(); ++i) {
    double& value = values.data()[i];
    double const here = value;
    auto const at = [&](double shift) {
      value = here + shift;
      return loss();
    };
    double const near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
    value = here;
    gradient.data()[i] = (8 * near - far) / (12 * step);
  }
  return gradient;
}

/// Compares a gradient with the differences of the loss. Fifth derivatives up to some 1e4 times the gradient pass.
template <class Gradient, class Values, class Loss>
void check_gradient(char const* name, Gradient const& gradient, Values& values, Loss&& loss) {
  INFO("gradient of " << name);
  train_bytes::Matrix<double> const expected = differences(values, loss);
  REQUIRE(expected.norm() > 0.01);
  CHECK((gradient - expected).norm() <= 1e-9 * expected.norm() + 1e-11);
}

}  // namespace annulus_test
