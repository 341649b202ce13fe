#pragma once
// Benchmark program of the library. Each element type is compiled in its own file, so that they build in parallel.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/comm/self.hpp>

#include <memory>
#include <vector>

#include "attention/program.hpp"

namespace annulus_bench {

template <class T>
class CpuProgram final : public AttentionProgram {
  using A = annulus::Accumulator<T>;
  using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;

 public:
  CpuProgram(AttentionCase const& c, Operands const& operands)
      : q_(operands.q.cast<T>()),
        k_(operands.k.cast<T>()),
        v_(operands.v.cast<T>()),
        dout_(operands.dout.cast<T>()),
        output_(q_.dimensions()),
        lse_(1, c.heads, c.tokens),
        backend_{.threads = c.threads},
        attention_(ring_, backend_, {.mask = mask_of(c.mask)}) {
    if (c.mask == MaskKind::packed) {
      std::vector<std::int32_t> const ids = document_ids(c.tokens);
      documents_ = Eigen::TensorMap<Eigen::Tensor<std::int32_t const, 2, Eigen::RowMajor>>(ids.data(), 1, c.tokens);
      optional_.query_segments = documents_;
      optional_.key_segments = documents_;
    }
    if (c.pass == Pass::backward)
      for (Tensor* gradient : {&dq_, &dk_, &dv_}) *gradient = Tensor(q_.dimensions());
  }

  void forward() override { attention_.forward_into(q_, k_, v_, output_, lse_, optional_); }

  void backward() override {
    attention_.backward_into(dout_, output_, lse_, q_, k_, v_,
                             annulus::GradientViews<T, annulus::HostMemory>{
                                 annulus::view_of(dq_), annulus::view_of(dk_), annulus::view_of(dv_)},
                             optional_);
  }

  std::vector<double> row(Quantity quantity, Index head, Index row) const override {
    if (quantity == Quantity::lse) return {static_cast<double>(lse_(0, head, row))};
    Tensor const& tensor = quantity == Quantity::output ? output_
                           : quantity == Quantity::dq   ? dq_
                           : quantity == Quantity::dk   ? dk_
                                                        : dv_;
    std::vector<double> values;
    for (Index d = 0; d < tensor.dimension(3); ++d) values.push_back(static_cast<double>(tensor(0, row, head, d)));
    return values;
  }

 private:
  Tensor q_, k_, v_, dout_, output_, dq_, dk_, dv_;
  Eigen::Tensor<A, 3, Eigen::RowMajor> lse_;
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> documents_;
  annulus::Operands<T> optional_;
  annulus::SelfRing ring_;
  annulus::CpuBackend backend_;
  annulus::RingAttention<annulus::SelfRing, annulus::CpuBackend> attention_;
};

template <class T>
std::unique_ptr<AttentionProgram> cpu_program(AttentionCase const& c, Operands const& operands) {
  return std::make_unique<CpuProgram<T>>(c, operands);
}

}  // namespace annulus_bench
