#include "nki_terms.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <utility>

namespace annulus_command {

namespace {

using annulus::Index;
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Sums of squared terms, accumulated over blocks of query rows.
class Terms {
 public:
  Terms(NkiProblem const& problem, Inputs<float> const& inputs, Results<double> const& reference)
      : problem_(problem),
        spec_(problem.spec),
        inputs_(inputs),
        reference_(reference),
        squares_(make_results<double>(problem.call, {problem.call.shape.queries, problem.call.shape.keys})) {
    for_each_tensor<double>(squares_, [](auto& tensor) { tensor.setZero(); });
  }

  Results<double> compute() && {
    Index const queries = problem_.call.shape.queries, block = 128;
    for (Index begin = 0; begin < queries; begin += block)
      for (Index batch = 0; batch < spec_.shape.batch; ++batch)
        for (Index head = 0; head < spec_.shape.query_heads; ++head)
          add({batch, head, head / spec_.shape.group(), begin, std::min(block, queries - begin)});
    for_each_tensor<double>(squares_, [](auto& tensor) { tensor = tensor.sqrt().eval(); });
    return std::move(squares_);
  }

 private:
  struct Where {
    Index batch, head, kv_head, begin, count;
  };

  template <class Tensor>
  auto view(Tensor& tensor) const {
    return annulus::view_of(with_axes(tensor, problem_.call.axes));
  }

  template <class Tensor>
  Matrix rows_of(Tensor const& tensor, Index batch, Index head, Index begin, Index count) const {
    auto const from = view(tensor);
    Matrix rows(count, from.extent(3));
    for (Index i = 0; i < count; ++i)
      for (Index e = 0; e < rows.cols(); ++e) rows(i, e) = double{from(batch, begin + i, head, e)};
    return rows;
  }

  template <class Tensor>
  void add_to(Tensor& tensor, Index batch, Index head, Index begin, Matrix const& rows) const {
    auto const to = view(tensor);
    for (Index i = 0; i < rows.rows(); ++i)
      for (Index e = 0; e < rows.cols(); ++e) to(batch, begin + i, head, e) += rows(i, e);
  }

  bool visible(Index batch, Index query, Index key) const {
    annulus::Options const& options = problem_.call.options;
    return options.mask.visible(query + options.query_offset, key) &&
           (!inputs_.query_segments || (*inputs_.query_segments)(batch, query) == (*inputs_.key_segments)(batch, key));
  }

  void add(Where const& at) {
    Index const keys = problem_.call.shape.keys;
    double const scale = spec_.softmax_scale, cap = spec_.logit_softcap;
    Matrix const q = rows_of(inputs_.q, at.batch, at.head, at.begin, at.count);
    Matrix const k = rows_of(inputs_.k, at.batch, at.kv_head, 0, keys);
    Matrix const v = rows_of(inputs_.v, at.batch, at.kv_head, 0, keys).cwiseAbs2();
    Matrix const logits = scale * (q * k.transpose());
    Matrix weights(at.count, keys), slopes(at.count, keys);  // squared
    for (Index i = 0; i < at.count; ++i)
      for (Index j = 0; j < keys; ++j) {
        double const bounded = cap > 0 ? std::tanh(logits(i, j) / cap) : 0;
        bool const seen = visible(at.batch, at.begin + i, j);
        double const logit = cap > 0 ? cap * bounded : logits(i, j);
        weights(i, j) = seen ? std::exp(2 * (logit - reference_.lse(at.batch, at.head, at.begin + i))) : 0;
        slopes(i, j) = 1 + std::pow(bounded, 4);  // the slope of the cap is the sum of 1 and -tanh^2
      }
    Matrix output = weights * v;
    add_to(squares_.out, at.batch, at.head, at.begin, output);
    if (!inputs_.dout) return;

    Matrix const dout = rows_of(*inputs_.dout, at.batch, at.head, at.begin, at.count).cwiseAbs2();
    output += rows_of(reference_.out, at.batch, at.head, at.begin, at.count).cwiseAbs2();  // it is rounded as well
    Eigen::VectorXd const delta = dout.cwiseProduct(output).rowwise().sum();
    Matrix const dlogits =
        weights.cwiseProduct(slopes).cwiseProduct(((dout * v.transpose()).colwise() + delta).eval()) * (scale * scale);
    add_to(*squares_.dq, at.batch, at.head, at.begin, dlogits * k.cwiseAbs2());
    add_to(*squares_.dk, at.batch, at.kv_head, 0, dlogits.transpose() * q.cwiseAbs2());
    add_to(*squares_.dv, at.batch, at.kv_head, 0, weights.transpose() * dout);
    if (!squares_.dsinks) return;
    for (Index s = 0; s < spec_.sinks; ++s)
      for (Index i = 0; i < at.count; ++i)
        (*squares_.dsinks)(at.head, s) +=
            delta(i) *
            std::exp(2 * (double{(*inputs_.sinks)(at.head, s)} - reference_.lse(at.batch, at.head, at.begin + i)));
  }

  NkiProblem const& problem_;
  annulus::nki::KernelSpec const& spec_;
  Inputs<float> const& inputs_;
  Results<double> const& reference_;
  Results<double> squares_;
};

}  // namespace

Results<double> term_sizes(NkiProblem const& problem, Inputs<float> const& inputs, Results<double> const& reference) {
  return Terms(problem, inputs, reference).compute();
}

}  // namespace annulus_command
