#include <limits>

#include "attention/eigen_heads.hpp"

namespace annulus_bench {
namespace {

class PlainEigenProgram final : public EigenHeads {
 public:
  PlainEigenProgram(AttentionCase const& c, Operands const& operands)
      : EigenHeads(c, operands), probabilities_(c.pass == Pass::backward ? heads_.size() : 0) {}

  void forward() override {
    for_each_head([&](std::size_t h, EigenHead& head) {
      if (case_.pass == Pass::backward) {
        attend(head, probabilities_[h]);
      } else {
        thread_local Matrix scores;
        attend(head, scores);
      }
    });
  }

  void backward() override {
    for_each_head([&](std::size_t h, EigenHead& head) {
      Matrix const& p = probabilities_[h];
      thread_local Matrix ds;
      Vector const delta = head.dout.cwiseProduct(head.output).rowwise().sum();
      head.dv.noalias() = p.transpose() * head.dout;
      ds.noalias() = head.dout * head.v.transpose();
      ds.array() = p.array() * (ds.colwise() - delta).array();
      head.dq.noalias() = ds * head.k;
      head.dq *= scale_;
      head.dk.noalias() = ds.transpose() * head.q;
    });
  }

 private:
  void attend(EigenHead& head, Matrix& p) {
    p.noalias() = head.q * head.k.transpose();
    for (Index i = 0; i < p.rows(); ++i) {
      if (causal()) p.row(i).tail(p.cols() - i - 1).setConstant(-std::numeric_limits<float>::infinity());
      float const maximum = p.row(i).maxCoeff();
      p.row(i) = (p.row(i).array() - maximum).exp();
      float const sum = p.row(i).sum();
      p.row(i) *= 1 / sum;
      head.lse[i] = maximum + std::log(sum);
    }
    head.output.noalias() = p * head.v;
  }

  std::vector<Matrix> probabilities_;
};

}  // namespace

std::unique_ptr<AttentionProgram> plain_eigen_program(AttentionCase const& c, Operands const& operands) {
  return std::make_unique<PlainEigenProgram>(c, operands);
}

}  // namespace annulus_bench
