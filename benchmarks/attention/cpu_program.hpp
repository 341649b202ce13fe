#pragma once
// Benchmark program of the library. Each element type is compiled in its own file, so that they build in parallel.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/comm/self.hpp>

#include <memory>
#include <utility>
#include <vector>

#include "attention/program.hpp"

namespace annulus_bench {

/// The predicate of OptionKind::predicate.
struct CausalPredicate {
  bool operator()(Index, Index, Index query, Index key) const { return key <= query; }
};

template <class T, class Predicate = annulus::EveryPair>
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
        attention_(ring_, backend_, options_of(c)) {
    if (has_documents(c.mask)) {
      std::vector<std::int32_t> const ids = document_ids(c.mask, c.tokens);
      documents_ = Eigen::TensorMap<Eigen::Tensor<std::int32_t const, 2, Eigen::RowMajor>>(ids.data(), 1, c.tokens);
      optional_.query_documents = documents_;
      optional_.key_documents = documents_;
    }
    bool const has_gradient = c.option == OptionKind::bias_gradient;
    if (c.option == OptionKind::bias || c.option == OptionKind::bias_row || has_gradient) {
      bias_ = Tensor(1, c.heads, c.option == OptionKind::bias_row ? 1 : c.tokens, c.tokens);
      for (Index h = 0; h < c.heads; ++h)
        for (Index i = 0; i < bias_.dimension(2); ++i)
          for (Index j = 0; j < c.tokens; ++j) bias_(0, h, i, j) = static_cast<T>(bias_at(c, h, i, j));
      annulus::TensorView<T const, 4> view = annulus::view_of(std::as_const(bias_));
      // A row for all queries: an axis of stride 0.
      if (c.option == OptionKind::bias_row) view = {view.data(), {1, c.heads, c.tokens, c.tokens}, {0, c.tokens, 0, 1}};
      optional_.bias = view;
      optional_.bias_gradient = has_gradient;
      if (has_gradient) dbias_ = Tensor(bias_.dimensions());
    }
    if (c.option == OptionKind::mask_true || c.option == OptionKind::mask_random ||
        c.option == OptionKind::mask_blocks) {
      mask_ = Eigen::Tensor<bool, 4, Eigen::RowMajor>(1, 1, c.tokens, c.tokens);
      for (Index i = 0; i < c.tokens; ++i)
        for (Index j = 0; j < c.tokens; ++j) mask_(0, 0, i, j) = mask_at(c.option, i, j);
      optional_.mask = mask_;
    }
    if (c.pass == Pass::backward)
      for (Tensor* gradient : {&dq_, &dk_, &dv_}) *gradient = Tensor(q_.dimensions());
  }

  void forward() override { attention_.forward_into(q_, k_, v_, output_, lse_, optional_); }

  void backward() override {
    annulus::GradientViews<T, annulus::HostMemory> gradients{annulus::view_of(dq_), annulus::view_of(dk_),
                                                             annulus::view_of(dv_)};
    if (dbias_.size() > 0) gradients.dbias = annulus::view_of(dbias_);
    attention_.backward_into(dout_, output_, lse_, q_, k_, v_, gradients, optional_);
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
  static annulus::Options options_of(AttentionCase const& c) {
    annulus::Options options{.mask = mask_of(c.mask)};
    if (c.option == OptionKind::soft_cap) options.logit_softcap = soft_cap;
    if (c.option == OptionKind::dropout) options.dropout = {.probability = dropout_probability, .seed = dropout_seed};
    return options;
  }

  Tensor q_, k_, v_, dout_, output_, dq_, dk_, dv_, bias_, dbias_;
  Eigen::Tensor<bool, 4, Eigen::RowMajor> mask_;
  Eigen::Tensor<A, 3, Eigen::RowMajor> lse_;
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> documents_;
  annulus::Operands<T> optional_;
  annulus::SelfRing ring_;
  annulus::CpuBackend backend_;
  annulus::RingAttention<annulus::SelfRing, annulus::CpuBackend, Predicate> attention_;
};

template <class T>
std::unique_ptr<AttentionProgram> cpu_program(AttentionCase const& c, Operands const& operands) {
  if (c.option == OptionKind::predicate) return std::make_unique<CpuProgram<T, CausalPredicate>>(c, operands);
  return std::make_unique<CpuProgram<T>>(c, operands);
}

}  // namespace annulus_bench
