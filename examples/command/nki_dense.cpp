#include <Eigen/Dense>
#include <algorithm>
#include <annulus/nki/simulate/arithmetic.hpp>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "nki_parts.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::nki::simulator::round_to;

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

/// Block of query rows of one head.
struct Where {
  Index batch, head, kv_head, begin, count;
};

/// Base of computations of type A over blocks of query rows, which add to results that begin with 0.
template <class A>
class OverBlocks {
 public:
  OverBlocks(NkiProblem const& problem, Inputs<float> const& inputs)
      : spec_(problem.spec),
        inputs_(inputs),
        results_(make_results<A>(problem.call, {problem.call.shape.queries, problem.call.shape.keys})),
        call_(problem.call) {
    for_each_tensor<A>(results_, [](auto& tensor) { tensor.setZero(); });
  }

 protected:
  template <class Function>
  void for_each_block(Function&& function) const {
    Index const queries = call_.shape.queries, block = 128;
    for (Index begin = 0; begin < queries; begin += block)
      for (Index batch = 0; batch < spec_.shape.batch; ++batch)
        for (Index head = 0; head < spec_.shape.query_heads; ++head)
          function(Where{batch, head, head / spec_.shape.group(), begin, std::min(block, queries - begin)});
  }

  Index keys() const { return call_.shape.keys; }

  bool visible(Index batch, Index query, Index key) const {
    return call_.options.mask.visible(query + call_.options.query_offset.value_or(0), key) &&
           (!inputs_.query_documents ||
            (*inputs_.query_documents)(batch, query) == (*inputs_.key_documents)(batch, key));
  }

  /// Bias of the pairs, -inf where it hides one; zeros without a bias.
  Matrix<A> bias_of(Where const& at) const {
    Matrix<A> bias = Matrix<A>::Zero(at.count, keys());
    if (inputs_.bias)
      for (Index i = 0; i < at.count; ++i)
        for (Index j = 0; j < keys(); ++j) bias(i, j) = pair(*inputs_.bias, at, i, j);
    return bias;
  }
  /// Element of a tensor [batch or 1, heads or 1, queries, keys].
  static auto& pair(auto& tensor, Where const& at, Index i, Index j) {
    return tensor(std::min(at.batch, Index{tensor.dimension(0)} - 1), std::min(at.head, Index{tensor.dimension(1)} - 1),
                  at.begin + i, j);
  }
  /// Adds to the gradient of the bias, if it is requested.
  void add_to_bias(Where const& at, Matrix<A> const& pairs) {
    for (Index i = 0; results_.dbias && i < at.count; ++i)
      for (Index j = 0; j < keys(); ++j) pair(*results_.dbias, at, i, j) += pairs(i, j);
  }

  template <class T>
  Matrix<A> query_rows(Tensor<T, 4> const& tensor, Where const& at) const {
    return head_rows<A>(tensor, call_.axes, at.batch, at.head, at.begin, at.count);
  }
  Matrix<A> key_rows(Tensor<float, 4> const& tensor, Where const& at) const {
    return head_rows<A>(tensor, call_.axes, at.batch, at.kv_head, 0, keys());
  }
  void add_to_queries(Tensor<A, 4>& tensor, Where const& at, Matrix<A> const& rows) const {
    add_head_rows(tensor, call_.axes, at.batch, at.head, at.begin, rows);
  }
  void add_to_keys(Tensor<A, 4>& tensor, Where const& at, Matrix<A> const& rows) const {
    add_head_rows(tensor, call_.axes, at.batch, at.kv_head, 0, rows);
  }

  annulus::nki::KernelSpec const& spec_;
  Inputs<float> const& inputs_;
  Results<A> results_;

 private:
  Call const& call_;
};

/// std::exp, because Eigen's exp gives a tiny number for -inf instead of 0.
template <class Logits>
Matrix<float> exponentials(Logits const& logits) {
  return logits.unaryExpr([](float x) { return std::exp(x); });
}

/// Dense attention, rounded where a kernel rounds.
class Dense : OverBlocks<float> {
 public:
  using OverBlocks::OverBlocks;

  Results<float> compute() && {
    for_each_block([&](Where const& at) { attend(at); });
    return std::move(results_);
  }

 private:
  void attend(Where const& at) {
    if (at.head == 0) {  // the same for all heads
      visible_.resize(at.count, keys());
      for (Index i = 0; i < at.count; ++i)
        for (Index j = 0; j < keys(); ++j) visible_(i, j) = visible(at.batch, at.begin + i, j);
    }
    Matrix<float> const q = query_rows(inputs_.q, at), k = key_rows(inputs_.k, at), v = key_rows(inputs_.v, at);
    auto const scale = static_cast<float>(spec_.softmax_scale), cap = static_cast<float>(spec_.logit_softcap);
    Matrix<float> logits = scale * (q * k.transpose());
    Matrix<float> cap_slope;
    if (cap > 0) {
      logits = cap * (logits / cap).array().tanh().matrix();
      cap_slope = (1 - (logits / cap).array().square()).matrix();
    }
    Matrix<float> bias = bias_of(at);
    if (adds_bias_to_product(spec_)) {
      float const multiplier = logit_factors(spec_).multiplier;
      auto const parts = annulus::nki::bfloat16_parts(1 / multiplier);
      bias = bias.unaryExpr([&](float x) { return std::isinf(x) ? x : multiplier * (x * parts[0] + x * parts[1]); });
    }
    logits += bias;
    logits = visible_.select(logits, Matrix<float>::Constant(at.count, keys(), minus_infinity));

    Matrix<float> output(at.count, v.cols());
    Eigen::VectorXf lse(at.count);
    for (Index i = 0; i < at.count; ++i) {
      float maximum = logits.row(i).maxCoeff();
      for (Index s = 0; s < spec_.sinks; ++s) maximum = std::max(maximum, (*inputs_.sinks)(at.head, s));
      if (maximum == minus_infinity) {
        output.row(i).setZero();
        lse(i) = minus_infinity;
        continue;
      }
      Matrix<float> weights = exponentials((logits.row(i).array() - maximum).matrix());
      float sum = weights.sum();
      for (Index s = 0; s < spec_.sinks; ++s) sum += std::exp((*inputs_.sinks)(at.head, s) - maximum);
      round_to(spec_.type, weights.data(), weights.size());
      output.row(i) = weights * v / sum;
      lse(i) = maximum + std::log(sum);
    }
    round_to(spec_.output_type, output.data(), output.size());
    round_to(spec_.lse_type, lse.data(), lse.size());
    add_to_queries(results_.out, at, output);
    for (Index i = 0; i < at.count; ++i) results_.lse(at.batch, at.head, at.begin + i) = lse(i);
    if (inputs_.dout) add_gradients(at, {q, k, v, logits, cap_slope, output}, lse);
  }

  struct Forward {
    Matrix<float> const &q, &k, &v, &logits, &cap_slope, &output;
  };

  void add_gradients(Where const& at, Forward const& forward, Eigen::VectorXf const& lse) {
    Matrix<float> const dout = query_rows(*inputs_.dout, at);
    Eigen::VectorXf const lse_or_zero =
        (lse.array() == minus_infinity).select(Eigen::ArrayXf::Zero(lse.size()), lse.array()).matrix();
    Matrix<float> weights = exponentials(forward.logits.colwise() - lse_or_zero);
    Eigen::VectorXf const delta = dout.cwiseProduct(forward.output).rowwise().sum();
    Matrix<float> const dweights = (dout * forward.v.transpose()).colwise() - delta;
    // The kernel keeps weights and dlogits in the type of the operands, as factors of TensorE's products; dbias leaves
    // in float32, before dlogits are rounded. The slope of a soft cap multiplies rounded dlogits.
    round_to(spec_.type, weights.data(), weights.size());
    Matrix<float> dlogits = weights.cwiseProduct(dweights);
    add_to_bias(at, dlogits);
    round_to(spec_.type, dlogits.data(), dlogits.size());
    if (forward.cap_slope.size() > 0) dlogits = dlogits.cwiseProduct(forward.cap_slope);
    round_to(spec_.type, dlogits.data(), dlogits.size());
    auto const scale = static_cast<float>(spec_.softmax_scale);
    add_to_queries(*results_.dq, at, scale * (dlogits * forward.k));
    add_to_keys(*results_.dk, at, scale * (dlogits.transpose() * forward.q));
    add_to_keys(*results_.dv, at, weights.transpose() * dout);
  }

  Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> visible_;
};

/// Roots of the sums of squared terms.
class Terms : OverBlocks<double> {
 public:
  Terms(NkiProblem const& problem, Inputs<float> const& inputs, Results<double> const& reference)
      : OverBlocks(problem, inputs), reference_(reference) {}

  Results<double> compute() && {
    for_each_block([&](Where const& at) { add(at); });
    for_each_tensor<double>(results_, [](auto& tensor) { tensor = tensor.sqrt().eval(); });
    return std::move(results_);
  }

 private:
  void add(Where const& at) {
    double const scale = spec_.softmax_scale, cap = spec_.logit_softcap;
    Matrix<double> const q = query_rows(inputs_.q, at), k = key_rows(inputs_.k, at);
    Matrix<double> const v = key_rows(inputs_.v, at).cwiseAbs2();
    Matrix<double> const logits = scale * (q * k.transpose()), bias = bias_of(at);
    Matrix<double> weights(at.count, keys()), cap_slopes(at.count, keys());  // squared
    for (Index i = 0; i < at.count; ++i)
      for (Index j = 0; j < keys(); ++j) {
        double const bounded = cap > 0 ? std::tanh(logits(i, j) / cap) : 0;
        bool const seen = visible(at.batch, at.begin + i, j) && !std::isinf(bias(i, j));
        double const logit = (cap > 0 ? cap * bounded : logits(i, j)) + bias(i, j);
        weights(i, j) = seen ? std::exp(2 * (logit - reference_.lse(at.batch, at.head, at.begin + i))) : 0;
        cap_slopes(i, j) = 1 + std::pow(bounded, 4);  // the slope is the sum of 1 and -tanh^2
      }
    Matrix<double> output = weights * v;
    add_to_queries(results_.out, at, output);
    if (!inputs_.dout) return;

    Matrix<double> const dout = query_rows(*inputs_.dout, at).cwiseAbs2();
    output += query_rows(reference_.out, at).cwiseAbs2();  // it is rounded as well
    Eigen::VectorXd const delta = dout.cwiseProduct(output).rowwise().sum();
    Matrix<double> const dbias = weights.cwiseProduct(((dout * v.transpose()).colwise() + delta).eval()),
                         dlogits = dbias.cwiseProduct(cap_slopes) * (scale * scale);
    add_to_bias(at, dbias);
    add_to_queries(*results_.dq, at, dlogits * k.cwiseAbs2());
    add_to_keys(*results_.dk, at, dlogits.transpose() * q.cwiseAbs2());
    add_to_keys(*results_.dv, at, weights.transpose() * dout);
    if (!results_.dsinks) return;
    for (Index s = 0; s < spec_.sinks; ++s)
      for (Index i = 0; i < at.count; ++i)
        (*results_.dsinks)(at.head, s) +=
            delta(i) *
            std::exp(2 * (double{(*inputs_.sinks)(at.head, s)} - reference_.lse(at.batch, at.head, at.begin + i)));
  }

  Results<double> const& reference_;
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

Results<double> term_sizes(NkiProblem const& problem, Inputs<float> const& inputs, Results<double> const& reference) {
  return Terms(problem, inputs, reference).compute();
}

}  // namespace annulus_command
