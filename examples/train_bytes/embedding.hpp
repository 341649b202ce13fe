#pragma once
// Vectors of bytes: a row of the embedding matrix for each.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "matrix.hpp"

namespace train_bytes {

template <class T>
Matrix<T> embed(std::vector<std::uint8_t> const& bytes, MatrixView<T const> const& embedding) {
  Matrix<T> result(static_cast<Index>(bytes.size()), embedding.cols());
  for (Index row = 0; row < result.rows(); ++row) result.row(row) = embedding.row(bytes[static_cast<std::size_t>(row)]);
  return result;
}

/// Adds the gradient of the embedding matrix to dembedding.
template <class T>
void embed_backward(Matrix<T> const& doutput, std::vector<std::uint8_t> const& bytes, MatrixView<T> dembedding) {
  for (Index row = 0; row < doutput.rows(); ++row)
    dembedding.row(bytes[static_cast<std::size_t>(row)]) += doutput.row(row);
}

}  // namespace train_bytes
