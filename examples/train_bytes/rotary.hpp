#pragma once
// Rotary position embedding by global positions (Su et al., arXiv 2104.09864).

#include <cmath>
#include <cstddef>
#include <vector>

#include "matrix.hpp"

namespace train_bytes {

/// Rotates the pairs (x[d], x[d + head_dim / 2]) of each head by position / 10000^(2 d / head_dim).
template <class T>
class Rotary {
 public:
  /// positions: of the rows of one sequence, in the order of the rows. Where they lie in the sequence does not matter,
  /// so a shard rotates its rows as one rank would.
  Rotary(std::vector<Index> const& positions, Index head_dim)
      : cosine_(static_cast<Index>(positions.size()), head_dim / 2), sine_(cosine_.rows(), cosine_.cols()) {
    for (Index row = 0; row < cosine_.rows(); ++row)
      for (Index d = 0; d < cosine_.cols(); ++d) {
        double const frequency = std::pow(10000.0, -2.0 * static_cast<double>(d) / static_cast<double>(head_dim));
        double const angle = static_cast<double>(positions[static_cast<std::size_t>(row)]) * frequency;
        cosine_(row, d) = static_cast<T>(std::cos(angle));
        sine_(row, d) = static_cast<T>(std::sin(angle));
      }
  }

  /// Rotates x [batch * positions, heads * head_dim] in place.
  void rotate(Matrix<T>& x) const { rotate(x, T(1)); }

  /// Turns the gradient of rotate(x) into that of x, in place: a rotation by the negative angle.
  void rotate_backward(Matrix<T>& dx) const { rotate(dx, T(-1)); }

 private:
  void rotate(Matrix<T>& x, T direction) const {
    Index const half = cosine_.cols(), sequence = cosine_.rows();
    for (Index row = 0; row < x.rows(); ++row) {
      auto const c = cosine_.row(row % sequence).array();
      auto const s = sine_.row(row % sequence).array() * direction;
      for (Index begin = 0; begin < x.cols(); begin += 2 * half) {
        auto first = x.row(row).segment(begin, half).array();
        auto second = x.row(row).segment(begin + half, half).array();
        Row<T> const before = first;
        first = c * first - s * second;
        second = s * before.array() + c * second;
      }
    }
  }

  Matrix<T> cosine_, sine_;  ///< [positions, head_dim / 2]
};

}  // namespace train_bytes
