#pragma once
// Linear layer without bias: y = x * weight.

#include "matrix.hpp"

namespace train_bytes {

/// Adds the gradient of the weight to dweight, and returns that of x, for y = x * weight.
template <class T>
Matrix<T> linear_backward(Matrix<T> const& dy, Matrix<T> const& x, MatrixView<T const> const& weight,
                          MatrixView<T> dweight) {
  dweight.noalias() += x.transpose() * dy;
  return dy * weight.transpose();
}

}  // namespace train_bytes
