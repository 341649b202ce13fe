#pragma once
// Parameters of the model in one vector, and the views that name its parts. Gradients have the same layout, so that
// all_reduce, clipping and the optimizer work on whole vectors.

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>

#include "matrix.hpp"

namespace train_bytes {

/// Extents of the model. heads is a multiple of kv_heads, width of 2 * heads.
struct ModelShape {
  Index layers = 4;
  Index width = 128;
  Index heads = 4;
  Index kv_heads = 2;

  static constexpr Index vocabulary = 256;  ///< one token for each value of a byte

  Index head_dim() const { return width / heads; }
  Index kv_width() const { return kv_heads * head_dim(); }
  /// 8/3 of the width, as three matrices of this width have the parameters of two of 4 * width; a multiple of 16.
  Index hidden_width() const { return (8 * width / 3 + 15) / 16 * 16; }

  Index layer_matrix_elements() const { return 2 * width * (width + kv_width()) + 3 * width * hidden_width(); }
  /// Elements of all matrices, which precede the gains of the norms.
  Index matrix_elements() const { return vocabulary * width + layers * layer_matrix_elements(); }
  Index parameters() const { return matrix_elements() + (2 * layers + 1) * width; }
};

/// Weights of one layer; a product is rows * matrix.
template <class Scalar>
struct LayerWeights {
  MatrixView<Scalar> query, key, value, output;
  MatrixView<Scalar> gate, up, down;
  RowView<Scalar> attention_norm, feed_forward_norm;
};

template <class T>
class Parameters {
 public:
  /// All zero.
  explicit Parameters(ModelShape const& shape) : shape_(shape), values_(Column<T>::Zero(shape.parameters())) {}

  /// Normally distributed matrices of standard deviation 0.02, smaller where a product is added to the residual stream,
  /// and gains of 1. Equal for equal seeds.
  static Parameters initial(ModelShape const& shape, std::uint64_t seed) {
    Parameters result(shape);
    std::mt19937_64 engine(seed);
    std::normal_distribution<double> normal(0, 0.02);
    for (Index i = 0; i < shape.matrix_elements(); ++i) result.values_[i] = static_cast<T>(normal(engine));
    result.values_.tail(shape.parameters() - shape.matrix_elements()).setOnes();
    T const residual_scale = static_cast<T>(1 / std::sqrt(2.0 * static_cast<double>(shape.layers)));
    for (Index i = 0; i < shape.layers; ++i) {
      result.layer(i).output *= residual_scale;
      result.layer(i).down *= residual_scale;
    }
    return result;
  }

  ModelShape const& shape() const { return shape_; }
  Column<T>& values() { return values_; }
  Column<T> const& values() const { return values_; }

  /// [256, width]: the vector of each byte, and also the head, which multiplies by its transpose.
  MatrixView<T> embedding() { return {values_.data(), shape_.vocabulary, shape_.width}; }
  MatrixView<T const> embedding() const { return {values_.data(), shape_.vocabulary, shape_.width}; }

  LayerWeights<T> layer(Index i) { return layer_at(values_.data(), i); }
  LayerWeights<T const> layer(Index i) const { return layer_at(values_.data(), i); }

  RowView<T> final_norm() { return {values_.data() + shape_.parameters() - shape_.width, shape_.width}; }
  RowView<T const> final_norm() const { return {values_.data() + shape_.parameters() - shape_.width, shape_.width}; }

 private:
  template <class Scalar>
  LayerWeights<Scalar> layer_at(Scalar* values, Index i) const {
    Index const width = shape_.width, kv = shape_.kv_width(), hidden = shape_.hidden_width();
    Scalar* next = values + shape_.vocabulary * width + i * shape_.layer_matrix_elements();
    auto const matrix = [&next](Index rows, Index columns) {
      Scalar* const begin = next;
      next += rows * columns;
      return MatrixView<Scalar>(begin, rows, columns);
    };
    Scalar* const norms = values + shape_.matrix_elements() + 2 * i * width;
    // Elements of a braced list are evaluated in order.
    return {matrix(width, width),
            matrix(width, kv),
            matrix(width, kv),
            matrix(width, width),
            matrix(width, hidden),
            matrix(width, hidden),
            matrix(hidden, width),
            RowView<Scalar>(norms, width),
            RowView<Scalar>(norms + width, width)};
  }

  ModelShape shape_;
  Column<T> values_;
};

}  // namespace train_bytes
