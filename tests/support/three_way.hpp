#pragma once
// Judgement of results of 16-bit operands by exact attention and plain dense attention in the same precision.

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "support/dense_same_precision.hpp"
#include "support/judge.hpp"

namespace annulus_test {

/// Rounds to T and back.
template <class T>
struct RoundTo {
  double operator()(double value) const { return static_cast<double>(static_cast<T>(value)); }
};

/// The candidate may be twice as far from the exact result as dense attention in T is, and as far again as the exact
/// result rounded to T; a few roundings are allowed for the float arithmetic that both share.
/// The operands hold values of T. lse and dsinks are float in both.
template <class T>
class ThreeWayJudge {
 public:
  /// The complaint about the result of one problem; empty if it is within bounds.
  std::string complaint(RingProblem const& problem, RingResult const& seen) {
    RoundTo<T> const round;
    OracleForward const exact = oracle_forward(problem.dense);
    OracleGradients const exact_gradients = oracle_backward(problem.dense, problem.dout);
    OracleForward const dense = dense_same_precision_forward(problem.dense, round);
    OracleGradients const dense_gradients = dense_same_precision_backward(problem.dense, problem.dout, round);
    Magnitudes const terms = magnitudes(problem.dense, problem.dout);
    std::string text;
    std::size_t which = 0;
    auto const compare = [&](std::vector<double> const& candidate, std::vector<double> const& reference,
                             std::vector<double> const& same_precision, std::vector<double> const& magnitude) {
      std::vector<double> rounded = reference;
      for (double& value : rounded) value = round(value);
      Errors const errors{distance(candidate, reference), distance(same_precision, reference),
                          distance(rounded, reference), float_bounds.of_terms * norm(magnitude)};
      // The error of a few values is random on both sides, so they are judged over many problems.
      if (reference.size() >= 16 || !std::isfinite(errors.candidate) || which != sinks)
        text += complaint(which, errors);
      if (norm(magnitude) > 0) pool(which, errors, norm(magnitude));
      ++which;
    };
    compare(seen.output, exact.output, dense.output, terms.output);
    compare(seen.lse, exact.lse, dense.lse, terms.lse);
    compare(seen.dq, exact_gradients.dq, dense_gradients.dq, terms.dq);
    compare(seen.dk, exact_gradients.dk, dense_gradients.dk, terms.dk);
    compare(seen.dv, exact_gradients.dv, dense_gradients.dv, terms.dv);
    compare(seen.dbias, exact_gradients.dbias, dense_gradients.dbias, terms.dbias);
    compare(seen.dsinks, exact_gradients.dsinks, dense_gradients.dsinks, terms.dsinks);
    return text.empty() ? text : problem.text + ": " + text;
  }

  /// The complaint about the mean square error over all problems so far, each relative to its terms.
  std::string complaint_about_all() const {
    std::string text;
    for (std::size_t i = 0; i < pooled_.size(); ++i) text += complaint(i, pooled_[i].root());
    return text;
  }

 private:
  static constexpr std::array<char const*, 7> names{"output", "lse", "dq", "dk", "dv", "dbias", "dsinks"};
  static constexpr std::size_t sinks = 6;

  struct Errors {
    double candidate = 0, dense = 0, rounding = 0, arithmetic = 0;

    Errors root() const { return {std::sqrt(candidate), std::sqrt(dense), std::sqrt(rounding), std::sqrt(arithmetic)}; }
  };

  static std::string complaint(std::size_t which, Errors const& errors) {
    if (errors.candidate <= 2 * errors.dense + errors.rounding + errors.arithmetic) return {};
    return annulus::detail::message_of(names[which], " is off by ", errors.candidate, ", dense attention by ",
                                       errors.dense, ", the rounded exact result by ", errors.rounding, "; ");
  }

  void pool(std::size_t which, Errors const& errors, double size) {
    auto const add = [size](double& sum, double error) { sum += error / size * (error / size); };
    add(pooled_[which].candidate, errors.candidate);
    add(pooled_[which].dense, errors.dense);
    add(pooled_[which].rounding, errors.rounding);
    add(pooled_[which].arithmetic, errors.arithmetic);
  }

  std::array<Errors, 7> pooled_{};
};

}  // namespace annulus_test
