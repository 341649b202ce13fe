#pragma once
// Dense causal attention in double for a sample of rows, written without the library's kernels, masks and plan so that
// it shares no error with them.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "call.hpp"
#include "errors.hpp"
#include "progress.hpp"

namespace annulus_command {

/// Largest difference divided by the largest magnitude of the expected values or of their terms. The terms count
/// because where they cancel, as in gradients of a text of equal bytes, the sum is no measure of its rounding errors.
class Deviation {
 public:
  /// terms: root of the sum of the squares of the terms whose sum is `expected`.
  void compare(double found, double expected, double terms) {
    difference_ = std::max(difference_, std::abs(found - expected));
    magnitude_ = std::max({magnitude_, std::abs(expected), terms});
    // std::max ignores NaN.
    if (!std::isfinite(found)) difference_ = std::numeric_limits<double>::infinity();
  }
  double relative() const { return magnitude_ == 0 ? difference_ : difference_ / magnitude_; }

 private:
  double difference_ = 0, magnitude_ = 0;
};

/// One query head in double, with the key and value head that it reads.
class DenseHead {
 public:
  using Matrix = annulus_command::Matrix<double>;

  DenseHead(Inputs<float> const& inputs, annulus::Index head, annulus::Index kv_head)
      : q(rows_of(inputs.q, head)),
        k(rows_of(inputs.k, kv_head)),
        v(rows_of(inputs.v, kv_head)),
        dout(rows_of(*inputs.dout, head)),
        scale(1 / std::sqrt(static_cast<double>(q.cols()))) {}

  /// Queries [begin, begin + count): weights [count, begin + count], output, lse and delta = rowsum(dout * output).
  struct Block {
    Matrix weights, output;
    Eigen::VectorXd lse, delta;
  };

  Block block(Eigen::Index begin, Eigen::Index count) const {
    Eigen::Index const keys = begin + count;
    Block result;
    Matrix& weights = result.weights;
    weights.noalias() = scale * q.middleRows(begin, count) * k.topRows(keys).transpose();
    result.lse.resize(count);
    for (Eigen::Index i = 0; i < count; ++i) {
      Eigen::Index const seen = begin + i + 1;
      auto row = weights.row(i).head(seen).array();
      double const largest = row.maxCoeff();
      double const sum = (row - largest).exp().sum();
      result.lse[i] = largest + std::log(sum);
      row = (row - result.lse[i]).exp();
      weights.row(i).tail(keys - seen).setZero();
    }
    result.output.noalias() = weights * v.topRows(keys);
    result.delta = result.output.cwiseProduct(dout.middleRows(begin, count)).rowwise().sum();
    return result;
  }

  /// Sums for the queries of a block, and the root of the sum of the squares of their terms.
  struct Sums {
    Matrix values, terms;
  };

  Sums dq(Block const& block, Eigen::Index begin) const {
    Eigen::Index const count = block.weights.rows(), keys = block.weights.cols();
    Matrix const dweights = dout.middleRows(begin, count) * v.topRows(keys).transpose();
    Matrix const dlogits = (dweights.colwise() - block.delta).cwiseProduct(block.weights);
    Matrix const squares =
        (dweights.cwiseAbs2().colwise() + block.delta.cwiseAbs2()).cwiseProduct(block.weights.cwiseAbs2());
    return {scale * dlogits * k.topRows(keys), scale * (squares * k.topRows(keys).cwiseAbs2()).cwiseSqrt()};
  }

  Matrix output_terms(Block const& block) const {
    return (block.weights.cwiseAbs2() * v.topRows(block.weights.cols()).cwiseAbs2()).cwiseSqrt();
  }

  Matrix q, k, v, dout;
  double scale;

 private:
  static Matrix rows_of(Tensor<float, 4> const& tensor, annulus::Index head) {
    return head_rows<double>(tensor, annulus::AxisOrder::bshd, 0, head, 0, tensor.dimension(1));
  }
};

/// Up to `samples` evenly spaced rows, including the first and the last.
inline std::vector<annulus::Index> sampled_rows(annulus::Index rows, annulus::Index samples) {
  std::vector<annulus::Index> result;
  if (samples > rows) samples = rows;
  for (annulus::Index s = 0; s < samples; ++s) result.push_back(samples == 1 ? 0 : s * (rows - 1) / (samples - 1));
  return result;
}

/// Compares output, lse and dq of the given queries of one head.
inline void check_queries(DenseHead const& dense, Results<float> const& results, annulus::Index head,
                          std::vector<annulus::Index> const& queries, Deviation& output, Deviation& lse,
                          Deviation& dq) {
  for (annulus::Index i : queries) {
    DenseHead::Block const row = dense.block(i, 1);
    DenseHead::Matrix const output_terms = dense.output_terms(row);
    DenseHead::Sums const gradient = dense.dq(row, i);
    lse.compare(static_cast<double>(results.lse(0, head, i)), row.lse[0], 1);  // the logarithm of a sum: its scale is 1
    for (Eigen::Index d = 0; d < row.output.cols(); ++d)
      output.compare(static_cast<double>(results.out(0, i, head, d)), row.output(0, d), output_terms(0, d));
    for (Eigen::Index d = 0; d < gradient.values.cols(); ++d)
      dq.compare(static_cast<double>((*results.dq)(0, i, head, d)), gradient.values(0, d), gradient.terms(0, d));
  }
}

/// Contribution of one query head to the gradients of sampled keys, and the sums of the squared terms.
struct KeyGradients {
  DenseHead::Matrix dk, dv, dk_squares, dv_squares;

  void operator+=(KeyGradients const& other) {
    dk += other.dk;
    dv += other.dv;
    dk_squares += other.dk_squares;
    dv_squares += other.dv_squares;
  }
};

/// Queries per block of the dense computation.
inline constexpr Eigen::Index dense_block_rows = 64;

/// Contribution of one query head to dk and dv of `keys`. Advances `progress` by one per block.
inline KeyGradients key_gradients(DenseHead const& head, std::vector<annulus::Index> const& keys, Progress& progress) {
  auto const samples = static_cast<Eigen::Index>(keys.size()), tokens = head.q.rows();
  DenseHead::Matrix const no_dk = DenseHead::Matrix::Zero(samples, head.k.cols());
  DenseHead::Matrix const no_dv = DenseHead::Matrix::Zero(samples, head.v.cols());
  KeyGradients sum{no_dk, no_dv, no_dk, no_dv};
  for (Eigen::Index begin = 0; begin < tokens; begin += dense_block_rows) {
    Eigen::Index const count = std::min(dense_block_rows, tokens - begin);
    DenseHead::Block const block = head.block(begin, count);
    for (Eigen::Index s = 0; s < samples; ++s) {
      Eigen::Index const key = keys[static_cast<std::size_t>(s)];
      if (key >= begin + count) continue;
      Eigen::VectorXd const weights = block.weights.col(key);
      Eigen::VectorXd const dweights = head.dout.middleRows(begin, count) * head.v.row(key).transpose();
      sum.dv.row(s) += weights.transpose() * head.dout.middleRows(begin, count);
      sum.dk.row(s) +=
          head.scale * weights.cwiseProduct(dweights - block.delta).transpose() * head.q.middleRows(begin, count);
      Eigen::VectorXd const squares = weights.cwiseAbs2();
      sum.dv_squares.row(s) += squares.transpose() * head.dout.middleRows(begin, count).cwiseAbs2();
      sum.dk_squares.row(s) += head.scale * head.scale *
                               squares.cwiseProduct(dweights.cwiseAbs2() + block.delta.cwiseAbs2()).transpose() *
                               head.q.middleRows(begin, count).cwiseAbs2();
    }
    progress.advance();
  }
  return sum;
}

/// Relative errors of the results against the dense computation, as Deviation defines them.
struct DemoErrors {
  double output, lse, dq, dk, dv;

  double largest() const { return std::max({output, lse, dq, dk, dv}); }
};

/// Checks all query heads at sampled queries, and dk and dv at sampled keys of the last kv head. The latter needs every
/// query of the group, on one thread per query head; throws std::runtime_error if a thread cannot be created.
inline DemoErrors check_against_dense(Inputs<float> const& inputs, Results<float> const& results, Progress& progress) {
  annulus::Index const tokens = inputs.q.dimension(1), heads = inputs.q.dimension(2), kv_heads = inputs.k.dimension(2);
  annulus::Index const group = heads / kv_heads, kv_head = kv_heads - 1;
  std::vector<annulus::Index> const queries = sampled_rows(tokens, 32), keys = sampled_rows(tokens, 16);

  Deviation output, lse, dq, dk, dv;
  for (annulus::Index h = 0; h < heads; ++h)
    check_queries(DenseHead(inputs, h, h / group), results, h, queries, output, lse, dq);

  std::vector<KeyGradients> shares(static_cast<std::size_t>(group));
  {
    std::vector<std::exception_ptr> failures(shares.size());
    std::vector<std::jthread> threads;
    for (std::size_t g = 0; g < shares.size(); ++g) {
      auto const compute = [&, g] {
        try {
          DenseHead const head(inputs, kv_head * group + static_cast<annulus::Index>(g), kv_head);
          shares[g] = key_gradients(head, keys, progress);
        } catch (...) {
          failures[g] = std::current_exception();
        }
      };
      try {
        threads.emplace_back(compute);
      } catch (std::system_error const& error) {
        throw std::runtime_error(
            thread_failure_message(std::to_string(group) + " query heads that are checked concurrently", error));
      }
    }
    threads.clear();
    for (std::exception_ptr const& failure : failures)
      if (failure) std::rethrow_exception(failure);
  }
  KeyGradients sum = shares[0];
  for (std::size_t g = 1; g < shares.size(); ++g) sum += shares[g];
  for (Eigen::Index s = 0; s < sum.dk.rows(); ++s) {
    annulus::Index const key = keys[static_cast<std::size_t>(s)];
    for (Eigen::Index d = 0; d < sum.dk.cols(); ++d)
      dk.compare(static_cast<double>((*results.dk)(0, key, kv_head, d)), sum.dk(s, d), std::sqrt(sum.dk_squares(s, d)));
    for (Eigen::Index d = 0; d < sum.dv.cols(); ++d)
      dv.compare(static_cast<double>((*results.dv)(0, key, kv_head, d)), sum.dv(s, d), std::sqrt(sum.dv_squares(s, d)));
  }
  return {output.relative(), lse.relative(), dq.relative(), dk.relative(), dv.relative()};
}

}  // namespace annulus_command
