#include "nki_dense.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <annulus/nki/simulate/rounding.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace annulus_command {

namespace {

using annulus::Index;
using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using annulus::nki::simulator::round_to;

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Rows [begin, begin + count) of one head.
template <class View>
Matrix rows_of(View const& view, Index batch, Index head, Index begin, Index count) {
  Matrix rows(count, view.extent(3));
  for (Index i = 0; i < count; ++i)
    for (Index e = 0; e < rows.cols(); ++e) rows(i, e) = view(batch, begin + i, head, e);
  return rows;
}

/// std::exp, because Eigen's exp gives a tiny number for -inf instead of 0.
template <class Logits>
Matrix exponentials(Logits const& logits) {
  return logits.unaryExpr([](float x) { return std::exp(x); });
}

template <class View>
void add_to(View const& view, Index batch, Index head, Index begin, Matrix const& rows) {
  for (Index i = 0; i < rows.rows(); ++i)
    for (Index e = 0; e < rows.cols(); ++e) view(batch, begin + i, head, e) += rows(i, e);
}

/// Dense attention over blocks of query rows.
class Dense {
 public:
  Dense(NkiProblem const& problem, Inputs<float> const& inputs)
      : problem_(problem),
        spec_(problem.spec),
        inputs_(inputs),
        results_(make_results<float>(problem.call, {problem.call.shape.queries, problem.call.shape.keys})) {
    for_each_tensor<float>(results_, [](auto& tensor) { tensor.setZero(); });
  }

  Results<float> compute() && {
    Index const queries = problem_.call.shape.queries, block = 128;
    for (Index begin = 0; begin < queries; begin += block) {
      Index const count = std::min(block, queries - begin);
      for (Index batch = 0; batch < spec_.shape.batch; ++batch) {
        find_visible(batch, begin, count);
        for (Index head = 0; head < spec_.shape.query_heads; ++head) attend(batch, head, begin, count);
      }
    }
    return std::move(results_);
  }

 private:
  auto view(Tensor<float, 4> const& tensor) const { return annulus::view_of(with_axes(tensor, problem_.call.axes)); }
  auto view(Tensor<float, 4>& tensor) const { return annulus::view_of(with_axes(tensor, problem_.call.axes)); }

  void find_visible(Index batch, Index begin, Index count) {
    annulus::Options const& options = problem_.call.options;
    visible_.resize(count, problem_.call.shape.keys);
    for (Index i = 0; i < count; ++i)
      for (Index j = 0; j < visible_.cols(); ++j)
        visible_(i, j) = options.mask.visible(begin + i + options.query_offset, j) &&
                         (!inputs_.query_segments ||
                          (*inputs_.query_segments)(batch, begin + i) == (*inputs_.key_segments)(batch, j));
  }

  void attend(Index batch, Index head, Index begin, Index count) {
    Index const kv_head = head / spec_.shape.group(), keys = problem_.call.shape.keys;
    Matrix const q = rows_of(view(inputs_.q), batch, head, begin, count);
    Matrix const k = rows_of(view(inputs_.k), batch, kv_head, 0, keys);
    Matrix const v = rows_of(view(inputs_.v), batch, kv_head, 0, keys);
    auto const scale = static_cast<float>(spec_.softmax_scale), cap = static_cast<float>(spec_.logit_softcap);
    Matrix logits = scale * (q * k.transpose());
    Matrix slope;
    if (cap > 0) {
      logits = cap * (logits / cap).array().tanh().matrix();
      slope = (1 - (logits / cap).array().square()).matrix();
    }
    logits = visible_.select(logits, Matrix::Constant(count, keys, minus_infinity));

    Matrix output(count, v.cols());
    Eigen::VectorXf lse(count);
    for (Index i = 0; i < count; ++i) {
      float maximum = logits.row(i).maxCoeff();
      for (Index s = 0; s < spec_.sinks; ++s) maximum = std::max(maximum, (*inputs_.sinks)(head, s));
      if (maximum == minus_infinity) {
        output.row(i).setZero();
        lse(i) = minus_infinity;
        continue;
      }
      Matrix weights = exponentials((logits.row(i).array() - maximum).matrix());
      float sum = weights.sum();
      for (Index s = 0; s < spec_.sinks; ++s) sum += std::exp((*inputs_.sinks)(head, s) - maximum);
      round_to(spec_.type, weights.data(), weights.size());
      output.row(i) = weights * v / sum;
      lse(i) = maximum + std::log(sum);
    }
    round_to(spec_.output_type, output.data(), output.size());
    round_to(spec_.lse_type, lse.data(), lse.size());
    add_to(view(results_.out), batch, head, begin, output);
    for (Index i = 0; i < count; ++i) results_.lse(batch, head, begin + i) = lse(i);
    if (inputs_.dout) add_gradients({batch, head, kv_head, begin}, {q, k, v, logits, slope, output}, lse);
  }

  struct Where {
    Index batch, head, kv_head, begin;
  };
  struct Forward {
    Matrix const &q, &k, &v, &logits, &slope, &output;
  };

  void add_gradients(Where const& at, Forward const& forward, Eigen::VectorXf const& lse) {
    Matrix const dout = rows_of(view(*inputs_.dout), at.batch, at.head, at.begin, forward.q.rows());
    Eigen::VectorXf const finite =
        (lse.array() == minus_infinity).select(Eigen::ArrayXf::Zero(lse.size()), lse.array()).matrix();
    Matrix weights = exponentials(forward.logits.colwise() - finite);
    Eigen::VectorXf const delta = dout.cwiseProduct(forward.output).rowwise().sum();
    Matrix dlogits = weights.cwiseProduct((dout * forward.v.transpose()).colwise() - delta);
    if (forward.slope.size() > 0) dlogits = dlogits.cwiseProduct(forward.slope);
    round_to(spec_.type, dlogits.data(), dlogits.size());
    round_to(spec_.type, weights.data(), weights.size());
    auto const scale = static_cast<float>(spec_.softmax_scale);
    add_to(view(*results_.dq), at.batch, at.head, at.begin, scale * (dlogits * forward.k));
    add_to(view(*results_.dk), at.batch, at.kv_head, 0, scale * (dlogits.transpose() * forward.q));
    add_to(view(*results_.dv), at.batch, at.kv_head, 0, weights.transpose() * dout);
  }

  NkiProblem const& problem_;
  annulus::nki::KernelSpec const& spec_;
  Inputs<float> const& inputs_;
  Results<float> results_;
  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> visible_;
};

}  // namespace

Results<float> dense_in_kernel_rounding(NkiProblem const& problem, Inputs<float> const& inputs) {
  Results<float> results = Dense(problem, inputs).compute();
  add_sink_gradients(problem, inputs, results);
  return results;
}

void add_sink_gradients(NkiProblem const& problem, Inputs<float> const& inputs, Results<float>& results) {
  if (!results.dsinks) return;
  auto const dout = annulus::view_of(with_axes(*inputs.dout, problem.call.axes));
  auto const output = annulus::view_of(with_axes(results.out, problem.call.axes));
  for (Index head = 0; head < problem.spec.shape.query_heads; ++head) {
    std::vector<double> sums(static_cast<std::size_t>(problem.spec.sinks), 0.0);
    for (Index batch = 0; batch < problem.spec.shape.batch; ++batch)
      for (Index i = 0; i < problem.call.shape.queries; ++i) {
        double delta = 0;
        for (Index e = 0; e < output.extent(3); ++e)
          delta += double{dout(batch, i, head, e)} * double{output(batch, i, head, e)};
        for (std::size_t s = 0; s < sums.size(); ++s)
          sums[s] -= delta * std::exp(double{(*inputs.sinks)(head, static_cast<Index>(s))} -
                                      double{results.lse(batch, head, i)});
      }
    for (std::size_t s = 0; s < sums.size(); ++s)
      (*results.dsinks)(head, static_cast<Index>(s)) = static_cast<float>(sums[s]);
  }
}

}  // namespace annulus_command
