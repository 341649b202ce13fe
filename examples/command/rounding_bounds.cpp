// The formulas are in verification.hpp.

#include "verification.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <annulus/numerics/dropout.hpp>
#include <annulus/numerics/softmax.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>

namespace annulus_command {

namespace {

using annulus::Index;
using Matrix = annulus_command::Matrix<double>;
using Vector = Eigen::VectorXd;

/// Bounds are this many standard deviations.
constexpr double safety = 6;

/// Rounding of one type: relative error up to a unit, absolute error up to `smallest` near 0.
struct Rounding {
  double element, sum;  ///< unit roundoff of elements and of sums
  /// Largest absolute rounding error near 0 (in double chosen so that its square does not underflow).
  double smallest;

  /// Root of the mean square of the relative error of elements, whose first digits follow Benford's law:
  /// sqrt(1/3 * 3/(8 ln 2)) units.
  double typical() const { return 0.425 * element; }
};

Rounding rounding_of(annulus::DataType type) {
  switch (type) {
    case annulus::DataType::float64:
      return {0x1p-52, 0x1p-52, 0x1p-500};
    case annulus::DataType::float32:
      return {0x1p-24, 0x1p-24, 0x1p-126};
    case annulus::DataType::bfloat16:
      return {0x1p-8, 0x1p-24, 0x1p-126};
    case annulus::DataType::float16:
      return {0x1p-11, 0x1p-24, 0x1p-24};
  }
  throw std::logic_error("not a value of DataType");
}

/// Error of each element, accumulated three ways: sum of squares of independent errors; sums of weighted errors with
/// their sign; sums of errors common to a row.
struct Errors {
  Results<double> squares, weighted, common;
};

/// Errors of the factors of the terms of a sum, [queries of the block, keys].
struct Factors {
  Matrix independent;  ///< independent error of each factor
  Matrix weighted;     ///< error with the sign of the factor, as if all errors had one sign
  Matrix common;       ///< error shared by all keys of a query; empty if none
};

class Bounds {
 public:
  Bounds(Inputs<double> const& inputs, Call const& call, Results<double> const& reference)
      : inputs_(inputs),
        call_(call),
        shape_(call.shape.attention),
        reference_(reference),
        rounding_(rounding_of(call.shape.dtype)),
        scale_(annulus::rules_of(call.options).scale(shape_.head_dim)),
        joint_(call.shape.joint_keys),
        terms_(std::max(joint_ + call.shape.keys + call.shape.sinks, call.shape.queries * shape_.group())),
        errors_{zeros(), zeros(), zeros()} {}

  Results<double> compute() && {
    Index const queries = call_.shape.queries, block = 64;
    for (Index batch = 0; batch < shape_.batch; ++batch)
      for (Index head = 0; head < shape_.query_heads; ++head)
        for (Index begin = 0; begin < queries; begin += block)
          add(Rows{batch, head, head / shape_.group(), begin, std::min(block, queries - begin)});
    finish(&Results<double>::out, rounding_.element);
    for (auto const tensor : {&Results<double>::dq, &Results<double>::dk, &Results<double>::dv, &Results<double>::dbias,
                              &Results<double>::d_joint_keys, &Results<double>::d_joint_values})
      if (errors_.squares.*tensor) finish(tensor, rounding_.element);
    if (errors_.squares.dsinks) finish(&Results<double>::dsinks, rounding_.sum);
    return std::move(errors_.squares);
  }

 private:
  struct Rows {
    Index batch, head, kv_head, begin, count;
  };

  /// Softmax weights of one block of queries and all keys, the joint keys before those of the ranks.
  struct Weights {
    Matrix kept, slope;  ///< dropout factor; derivative of the soft cap; both 0 for masked pairs
    Matrix p, error;     ///< weight before dropout, and its error
    Matrix largest;      ///< upper bound of the weight, including its error
    Matrix slope_error;
    Vector lse_error;
  };

  Results<double> zeros() const {
    Results<double> results = make_results<double>(call_, {call_.shape.queries, call_.shape.keys});
    for_each_tensor<double>(results, [](auto& tensor) { tensor.setZero(); });
    return results;
  }

  Matrix rows_of(Tensor<double, 4> const& tensor, Index batch, Index head, Index begin, Index count) const {
    return head_rows<double>(tensor, call_.axes, batch, head, begin, count);
  }

  /// The joint rows, if there are any, followed by the rows of all ranks, of one head of keys or values.
  Matrix key_rows(std::optional<Tensor<double, 4>> const& joint, Tensor<double, 4> const& tensor,
                  Rows const& at) const {
    Matrix const own = rows_of(tensor, at.batch, at.kv_head, 0, call_.shape.keys);
    if (!joint) return own;
    Matrix all(joint_ + own.rows(), own.cols());
    all << rows_of(*joint, at.batch, at.kv_head, 0, joint_), own;
    return all;
  }

  /// Element of a bias or mask; batch and heads broadcast if their extent is 1.
  template <class Pairs>
  static auto& pair(Pairs& pairs, Rows const& at, Index i, Index j) {
    return pairs(pairs.dimension(0) == 1 ? 0 : at.batch, pairs.dimension(1) == 1 ? 0 : at.head, at.begin + i, j);
  }

  /// Key j counts from the first one of the ranks; joint keys are negative.
  bool visible(Rows const& at, Index i, Index j) const {
    Index const query = at.begin + i;
    if (j < 0) return !inputs_.query_documents || (*inputs_.query_documents)(at.batch, query) > 0;
    if (!call_.options.mask.visible(query + call_.options.query_offset.value_or(0), j)) return false;
    if (inputs_.mask && !pair(*inputs_.mask, at, i, j)) return false;
    if (!inputs_.query_documents) return true;
    std::int32_t const id = (*inputs_.query_documents)(at.batch, query);
    return id > 0 && id == (*inputs_.key_documents)(at.batch, j);
  }

  /// Bound on |exp(logit + e) - exp(logit)| for |e| <= safety * error, divided by `safety`: the caller multiplies the
  /// combined error by it. Weights never exceed 1.
  static double weight_error(double logit, double error) {
    double const p = std::min(1.0, std::exp(logit)), reach = safety * error;
    if (reach < 0.01) return 1.01 * p * error;
    if (!std::isfinite(reach)) return 1 / safety;
    double const up = std::min(1.0, std::exp(logit + reach)) - p, down = p - std::exp(logit - reach);
    return std::max({up, down, 0.0}) / safety;
  }

  Weights weights_of(Rows const& at, Matrix const& q, Matrix const& k) const {
    Index const keys = k.rows();
    double const cap = call_.options.logit_softcap, unit = rounding_.sum;
    annulus::LogitRule<double> const rule{scale_, cap};
    double const product_unit = unit * std::abs(scale_) * std::sqrt(static_cast<double>(q.cols()));
    double const sum_error = unit * (std::sqrt(static_cast<double>(terms_)) + 8);
    Matrix const products = q * k.transpose();
    Vector const q_norms = q.rowwise().norm(), k_norms = k.rowwise().norm();
    Matrix const none = Matrix::Zero(at.count, keys);
    Weights weights{none, none, none, none, none, none, Vector::Zero(at.count)};
    Matrix logits = none, logit_errors = none;
    for (Index i = 0; i < at.count; ++i) {
      double const lse = reference_.lse(at.batch, at.head, at.begin + i);
      if (std::isinf(lse)) continue;
      annulus::DropoutRow dropout(call_.options.dropout, at.batch, at.head,
                                  at.begin + i + call_.options.query_offset.value_or(0));
      double lse_error = sum_error + 4 * unit * std::abs(lse);
      for (Index j = 0; j < keys; ++j) {
        double const bias = inputs_.bias && j >= joint_ ? pair(*inputs_.bias, at, i, j - joint_) : 0;
        if (std::isinf(bias) || !visible(at, i, j - joint_)) continue;
        double const capped = rule(products(i, j)), logit = capped + bias;
        double const product_error = product_unit * q_norms(i) * k_norms(j);
        double const slope = scale_ == 0 ? 1 : rule.slope(capped) / scale_;
        double error = 4 * unit * (std::abs(capped) + std::abs(bias) + std::abs(logit)) + product_error * slope;
        if (cap > 0) {
          error += std::min(product_error * product_error / cap, 2 * cap);
          weights.slope_error(i, j) = 4 * unit + slope * std::min(1.0, 2 * product_error / cap);
        }
        logits(i, j) = logit - lse;
        logit_errors(i, j) = error;
        weights.p(i, j) = std::min(1.0, std::exp(logit - lse));  // above 1 where |lse| absorbs the difference
        weights.slope(i, j) = slope;
        bool const kept = !call_.options.dropout.active() || dropout.keeps(j);
        weights.kept(i, j) = !kept ? 0 : call_.options.dropout.active() ? call_.options.dropout.keep_scale() : 1;
        lse_error += weights.p(i, j) * error;
      }
      weights.lse_error(i) = lse_error;
      for (Index j = 0; j < keys; ++j)
        if (weights.slope(i, j) != 0 || weights.p(i, j) != 0) {
          double const error =
              weight_error(logits(i, j), logit_errors(i, j) + lse_error + 4 * unit * std::abs(logits(i, j)));
          weights.error(i, j) = error + rounding_.typical() * weights.p(i, j) + rounding_.smallest;
          weights.largest(i, j) = std::min(1.0, weights.p(i, j) + safety * error);
        }
    }
    return weights;
  }

  /// The sum over keys of factor times row: the errors of elements that belong to queries.
  template <class Member>
  void add_over_keys(Member tensor, Rows const& at, Factors const& factors, Matrix const& rows) {
    auto const add = [&](Results<double>& errors, Matrix const& sums) {
      add_head_rows(value(errors.*tensor), call_.axes, at.batch, at.head, at.begin, sums);
    };
    add(errors_.squares, factors.independent.cwiseAbs2() * rows.cwiseAbs2());
    add(errors_.weighted, factors.weighted * rows);
    if (factors.common.size() > 0) add(errors_.common, factors.common * rows);
  }

  /// The sum over queries: the errors of elements that belong to keys of the ranks, and to joint keys.
  template <class Member>
  void add_over_queries(Member tensor, Member joint, Rows const& at, Factors const& factors, Matrix const& rows) {
    auto const add = [&](Results<double>& errors, Matrix const& sums) {
      add_head_rows(value(errors.*tensor), call_.axes, at.batch, at.kv_head, 0, sums.bottomRows(call_.shape.keys));
      if (joint_ > 0) add_head_rows(value(errors.*joint), call_.axes, at.batch, at.kv_head, 0, sums.topRows(joint_));
    };
    Matrix squares = factors.independent.cwiseAbs2();
    if (factors.common.size() > 0) squares += factors.common.cwiseAbs2();  // independent between queries
    add(errors_.squares, squares.transpose() * rows.cwiseAbs2());
    add(errors_.weighted, factors.weighted.transpose() * rows);
    if (factors.common.size() > 0) add(errors_.common, factors.common.transpose() * rows);
  }

  template <class T>
  static T& value(T& tensor) {
    return tensor;
  }
  template <class T>
  static T& value(std::optional<T>& tensor) {
    return *tensor;
  }
  template <class T>
  static T const& value(std::optional<T> const& tensor) {
    return *tensor;
  }

  void add(Rows const& at) {
    Matrix const q = rows_of(inputs_.q, at.batch, at.head, at.begin, at.count);
    Matrix const k = key_rows(inputs_.joint_keys, inputs_.k, at);
    Matrix const v = key_rows(inputs_.joint_values, inputs_.v, at);
    Weights const weights = weights_of(at, q, k);
    for (Index i = 0; i < at.count; ++i) {
      double const lse = reference_.lse(at.batch, at.head, at.begin + i);
      double const rounded = std::isinf(lse) ? 0 : rounding_.sum * std::abs(lse);
      errors_.squares.lse(at.batch, at.head, at.begin + i) = safety * (weights.lse_error(i) + rounded);
    }
    Matrix const kept_error = weights.error.cwiseProduct(weights.kept);
    Factors const forward{kept_error, kept_error, {}};
    add_over_keys(&Results<double>::out, at, forward, v);
    if (inputs_.dout) add_gradients(at, q, k, v, weights, forward);
  }

  void add_gradients(Rows const& at, Matrix const& q, Matrix const& k, Matrix const& v, Weights const& weights,
                     Factors const& forward) {
    Matrix const dout = rows_of(*inputs_.dout, at.batch, at.head, at.begin, at.count);
    Matrix const output = rows_of(reference_.out, at.batch, at.head, at.begin, at.count);
    Matrix const output_squares = rows_of(errors_.squares.out, at.batch, at.head, at.begin, at.count) +
                                  rows_of(errors_.weighted.out, at.batch, at.head, at.begin, at.count).cwiseAbs2() +
                                  rounding_.typical() * rounding_.typical() * output.cwiseAbs2();
    double const dot_unit = rounding_.sum * std::sqrt(static_cast<double>(v.cols()));
    Vector const delta = dout.cwiseProduct(output).rowwise().sum();
    Vector const dout_norms = dout.rowwise().norm(), v_norms = v.rowwise().norm();
    Vector const delta_error = (dout.cwiseAbs2().cwiseProduct(output_squares).rowwise().sum() +
                                (dot_unit * dout_norms.cwiseProduct(output.rowwise().norm())).cwiseAbs2())
                                   .cwiseSqrt();
    // Equal values give dout.v the same rounding error for one query, so it is a common error.
    Vector const common_error =
        (delta_error.cwiseAbs2() + (dot_unit * v_norms.maxCoeff() * weights.kept.maxCoeff() * dout_norms).cwiseAbs2())
            .cwiseSqrt();
    add_over_queries(&Results<double>::dv, &Results<double>::d_joint_values, at, forward, dout);

    Matrix const slopes = (dout * v.transpose()).cwiseProduct(weights.kept).colwise() - delta;
    Matrix const product_error = (dot_unit * dout_norms * v_norms.transpose()).cwiseProduct(weights.kept);
    Factors dlogits;
    dlogits.weighted = weights.error.cwiseProduct(slopes);
    dlogits.independent = dlogits.weighted.cwiseAbs() + weights.largest.cwiseProduct(product_error);
    dlogits.common = common_error.asDiagonal() * weights.largest;
    if (errors_.squares.dbias) add_bias_gradient(at, dlogits);

    Factors dproducts;
    dproducts.weighted = scale_ * dlogits.weighted.cwiseProduct(weights.slope);
    dproducts.independent =
        std::abs(scale_) * (dlogits.independent.cwiseProduct(weights.slope) +
                            weights.slope_error.cwiseProduct(weights.largest.cwiseProduct(slopes.cwiseAbs())))
                               .array() +
        std::abs(scale_) * rounding_.smallest;
    dproducts.common = std::abs(scale_) * dlogits.common.cwiseProduct(weights.slope);
    add_over_keys(&Results<double>::dq, at, dproducts, k);
    add_over_queries(&Results<double>::dk, &Results<double>::d_joint_keys, at, dproducts, q);
    if (errors_.squares.dsinks) add_sink_gradients(at, delta, delta_error, weights.lse_error);
  }

  void add_bias_gradient(Rows const& at, Factors const& dlogits) {
    for (Index i = 0; i < at.count; ++i)
      for (Index j = joint_; j < dlogits.weighted.cols(); ++j) {
        pair(*errors_.squares.dbias, at, i, j - joint_) += dlogits.independent(i, j) * dlogits.independent(i, j);
        pair(*errors_.weighted.dbias, at, i, j - joint_) += dlogits.weighted(i, j);
        pair(*errors_.common.dbias, at, i, j - joint_) += dlogits.common(i, j);
      }
  }

  void add_sink_gradients(Rows const& at, Vector const& delta, Vector const& delta_error, Vector const& lse_error) {
    for (Index s = 0; s < call_.shape.sinks; ++s)
      for (Index i = 0; i < at.count; ++i) {
        double const sink = (*inputs_.sinks)(at.head, s), lse = reference_.lse(at.batch, at.head, at.begin + i);
        if (std::isinf(sink) || std::isinf(lse)) continue;
        double const p = std::exp(sink - lse);
        double const error =
            weight_error(sink - lse, lse_error(i) + 4 * rounding_.sum * (std::abs(sink) + std::abs(sink - lse)));
        (*errors_.squares.dsinks)(at.head, s) += std::pow(error * delta(i), 2) + std::pow(p * delta_error(i), 2);
        (*errors_.weighted.dsinks)(at.head, s) += error * delta(i);
      }
  }

  /// Replaces the squares of a result's errors by its bounds.
  template <class Member>
  void finish(Member tensor, double unit) {
    auto& squares = value(errors_.squares.*tensor);
    auto const &weighted = value(errors_.weighted.*tensor), &common = value(errors_.common.*tensor),
               &reference = value(reference_.*tensor);
    for (Index i = 0; i < squares.size(); ++i) {
      double const terms =
          std::sqrt(squares.data()[i] + std::pow(weighted.data()[i], 2) + std::pow(common.data()[i], 2));
      squares.data()[i] = safety * terms + unit * std::abs(reference.data()[i]) + rounding_.smallest;
    }
  }

  Inputs<double> const& inputs_;
  Call const& call_;
  annulus::AttentionShape const& shape_;
  Results<double> const& reference_;
  Rounding rounding_;
  double scale_;
  Index joint_;  ///< number of joint keys
  Index terms_;
  Errors errors_;
};

}  // namespace

Results<double> rounding_bounds(Inputs<double> const& inputs, Call const& call, Results<double> const& reference) {
  return Bounds(inputs, call, reference).compute();
}

}  // namespace annulus_command
