// Blocked Eigen program: attention head by head over blocks of queries and keys with online softmax.

#include <algorithm>
#include <limits>

#include "attention/eigen_heads.hpp"

namespace annulus_bench {
namespace {

constexpr Index query_block = 128, key_block = 256;

class BlockedEigenProgram final : public EigenHeads {
 public:
  using EigenHeads::EigenHeads;

  void forward() override {
    for_each_head([&](std::size_t, EigenHead& head) {
      thread_local Matrix p;
      for (Index i = 0; i < case_.tokens; i += query_block) attend(head, p, i, std::min(query_block, case_.tokens - i));
    });
  }

  void backward() override {
    for_each_head([&](std::size_t, EigenHead& head) {
      thread_local Matrix p, ds;
      Vector const delta = head.dout.cwiseProduct(head.output).rowwise().sum();
      head.dq.setZero();
      for (Index j = 0; j < case_.tokens; j += key_block) {
        Index const keys = std::min(key_block, case_.tokens - j);
        auto dk = head.dk.middleRows(j, keys), dv = head.dv.middleRows(j, keys);
        dk.setZero();
        dv.setZero();
        for (Index i = causal() ? j / query_block * query_block : 0; i < case_.tokens; i += query_block) {
          Index const queries = std::min(query_block, case_.tokens - i);
          score(head, p, i, queries, j, keys);
          p.array() = (p.colwise() - head.lse.segment(i, queries)).array().exp();
          auto const dout = head.dout.middleRows(i, queries);
          dv.noalias() += p.transpose() * dout;
          ds.noalias() = dout * head.v.middleRows(j, keys).transpose();
          ds.array() = p.array() * (ds.colwise() - delta.segment(i, queries)).array();
          head.dq.middleRows(i, queries).noalias() += ds * head.k.middleRows(j, keys);
          dk.noalias() += ds.transpose() * head.q.middleRows(i, queries);
        }
      }
      head.dq *= scale_;
    });
  }

 private:
  void score(EigenHead const& head, Matrix& p, Index i, Index queries, Index j, Index keys) const {
    p.noalias() = head.q.middleRows(i, queries) * head.k.middleRows(j, keys).transpose();
    if (!causal() || j + keys <= i + 1) return;
    for (Index row = 0; row < queries; ++row) {
      Index const hidden = std::clamp<Index>(j + keys - (i + row + 1), 0, keys);
      p.row(row).tail(hidden).setConstant(-std::numeric_limits<float>::infinity());
    }
  }

  void attend(EigenHead& head, Matrix& p, Index i, Index queries) const {
    auto output = head.output.middleRows(i, queries);
    output.setZero();
    Vector maximum = Vector::Constant(queries, -std::numeric_limits<float>::infinity()), sum = Vector::Zero(queries);
    for (Index j = 0; j < (causal() ? i + queries : case_.tokens); j += key_block) {
      Index const keys = std::min(key_block, case_.tokens - j);
      score(head, p, i, queries, j, keys);
      Vector const raised = maximum.cwiseMax(p.rowwise().maxCoeff());
      Vector const factor = (maximum - raised).array().exp();
      p.array() = (p.colwise() - raised).array().exp();
      sum = sum.cwiseProduct(factor) + p.rowwise().sum();
      output.array().colwise() *= factor.array();
      output.noalias() += p * head.v.middleRows(j, keys);
      maximum = raised;
    }
    output.array().colwise() /= sum.array();
    head.lse.segment(i, queries) = maximum.array() + sum.array().log();
  }
};

}  // namespace

std::unique_ptr<AttentionProgram> blocked_eigen_program(AttentionCase const& c, Operands const& operands) {
  return std::make_unique<BlockedEigenProgram>(c, operands);
}

}  // namespace annulus_bench
