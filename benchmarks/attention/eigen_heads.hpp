#pragma once
// Base class of the Eigen programs: heads as contiguous matrices, distributed over threads.

#include <Eigen/Core>
#include <annulus/core/error.hpp>

#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "attention/program.hpp"

namespace annulus_bench {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Vector = Eigen::VectorXf;

/// Operands and results of one head, [tokens, head_dim] each; q is multiplied by the softmax scale.
struct EigenHead {
  Matrix q, k, v, dout, output, dq, dk, dv;
  Vector lse;
};

class EigenHeads : public AttentionProgram {
 public:
  EigenHeads(AttentionCase const& c, Operands const& operands)
      : case_(c), scale_(1 / std::sqrt(static_cast<float>(c.head_dim))), heads_(static_cast<std::size_t>(c.heads)) {
    annulus::detail::check<annulus::UnsupportedError>(
        c.type == DataType::float32 && (c.mask == MaskKind::full || c.mask == MaskKind::causal),
        "the Eigen programs compute float32 with a full or causal mask");
    for (Index h = 0; h < c.heads; ++h) {
      EigenHead& head = heads_[static_cast<std::size_t>(h)];
      auto const matrix_of = [&](FloatTensor const& tensor) {
        Eigen::Map<Matrix const, 0, Eigen::OuterStride<>> const rows(
            tensor.data() + h * c.head_dim, c.tokens, c.head_dim, Eigen::OuterStride<>(c.heads * c.head_dim));
        return Matrix(rows);
      };
      head.q = matrix_of(operands.q) * scale_;
      head.k = matrix_of(operands.k);
      head.v = matrix_of(operands.v);
      head.output.resize(c.tokens, c.head_dim);
      head.lse.resize(c.tokens);
      if (c.pass == Pass::forward) continue;
      head.dout = matrix_of(operands.dout);
      for (Matrix* gradient : {&head.dq, &head.dk, &head.dv}) gradient->resize(c.tokens, c.head_dim);
    }
  }

  std::vector<double> row(Quantity quantity, Index head_index, Index row) const override {
    EigenHead const& head = heads_[static_cast<std::size_t>(head_index)];
    if (quantity == Quantity::lse) return {static_cast<double>(head.lse[row])};
    Matrix const& matrix = quantity == Quantity::output ? head.output
                           : quantity == Quantity::dq   ? head.dq
                           : quantity == Quantity::dk   ? head.dk
                                                        : head.dv;
    std::vector<double> values;
    for (Index d = 0; d < matrix.cols(); ++d) values.push_back(static_cast<double>(matrix(row, d)));
    return values;
  }

 protected:
  bool causal() const { return case_.mask == MaskKind::causal; }

  /// Calls work(index of the head, head) for all heads, each on one of the case's threads.
  template <class Work>
  void for_each_head(Work&& work) {
    std::atomic<std::size_t> next = 0;
    auto const run = [&] {
      for (std::size_t h; (h = next++) < heads_.size();) work(h, heads_[h]);
    };
    std::vector<std::jthread> others;
    for (int thread = 1; thread < case_.threads; ++thread) others.emplace_back(run);
    run();
  }

  AttentionCase case_;
  float scale_;
  std::vector<EigenHead> heads_;
};

}  // namespace annulus_bench
