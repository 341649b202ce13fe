#pragma once
// Root mean square normalisation of each row (Zhang and Sennrich, arXiv 1910.07467).

#include <cmath>

#include "matrix.hpp"

namespace train_bytes {

template <class T>
struct Normalised {
  Matrix<T> output;
  Column<T> scale;  ///< of each row: 1 / root mean square, which the backward pass reads
};

/// Rows of x, scaled to a mean square of 1, times the gain of each column.
template <class T>
Normalised<T> rms_norm(Matrix<T> const& x, RowView<T const> const& gain) {
  constexpr T epsilon = T(1e-5);  // keeps a row of zeros finite
  Normalised<T> result;
  result.scale = (x.rowwise().squaredNorm().array() / static_cast<T>(x.cols()) + epsilon).rsqrt();
  result.output = (x.array().colwise() * result.scale.array()).rowwise() * gain.array();
  return result;
}

/// Adds the gradient of the gain to dgain, and returns that of x.
template <class T>
Matrix<T> rms_norm_backward(Matrix<T> const& doutput, Matrix<T> const& x, Column<T> const& scale,
                            RowView<T const> const& gain, RowView<T> dgain) {
  Matrix<T> const unit = x.array().colwise() * scale.array();
  dgain += (doutput.array() * unit.array()).matrix().colwise().sum();
  Matrix<T> dx = doutput.array().rowwise() * gain.array();
  Column<T> const along = (dx.array() * unit.array()).matrix().rowwise().mean();
  dx.array() -= unit.array().colwise() * along.array();
  dx.array().colwise() *= scale.array();
  return dx;
}

}  // namespace train_bytes
