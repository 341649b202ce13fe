#pragma once
// Comparison of a result with the oracle. The bound is relative to the norm of the exact result; if a result is a small
// difference of large terms, no arithmetic of this precision can do better than a few roundings of those terms, and the
// bound is relative to them.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "support/oracle.hpp"
#include "support/ring_run.hpp"

namespace annulus_test {

/// Sums of the absolute values of the terms of each result, per element (lse: per-logit rounding).
struct Magnitudes {
  std::vector<double> output, lse, dq, dk, dv, dbias, dsinks;
};

inline Magnitudes magnitudes(OracleProblem const& p, std::vector<double> const& dout) {
  namespace od = oracle_detail;
  Magnitudes sums{std::vector<double>(dout.size()),
                  std::vector<double>(static_cast<std::size_t>(p.batch * p.query_heads * p.query_length)),
                  std::vector<double>(p.q.size()),
                  std::vector<double>(p.k.size()),
                  std::vector<double>(p.v.size()),
                  std::vector<double>(p.bias ? p.bias->values.size() : 0),
                  std::vector<double>(p.sinks ? p.sinks->values.size() : 0)};
  auto const add = [](std::vector<double>& sum, std::int64_t begin, double factor, double const* row,
                      std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(begin + i)] += std::abs(factor * row[i]);
  };
  auto const absolute_dot = [](double const* a, double const* b, std::int64_t count) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += std::abs(a[i] * b[i]);
    return sum;
  };
  od::SeenRow<double> seen;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.query_heads; ++h)
      for (std::int64_t row = 0; row < p.query_length; ++row) {
        od::look(p, b, h, row, seen);
        std::int64_t const kv = od::kv_head_of(p, h), qb = od::q_begin(p, b, h, row),
                           ob = od::output_begin(p, b, h, row);
        double const* const query = p.q.data() + qb;
        double const* const dout_row = dout.data() + ob;
        double const scale = std::abs(od::scale_of<double>(p));
        double delta = 0, reach = 1;
        for (auto const& key : seen.keys) {
          double const* const value = p.v.data() + od::v_begin(p, b, kv, key.key);
          add(sums.output, ob, key.probability * key.dropout_factor, value, p.value_dim);
          delta += key.probability * key.dropout_factor * absolute_dot(dout_row, value, p.value_dim);
        }
        for (auto const& key : seen.keys) {
          std::int64_t const kb = od::k_begin(p, b, kv, key.key), vb = od::v_begin(p, b, kv, key.key);
          double const product = absolute_dot(query, p.k.data() + kb, p.head_dim) * scale;
          reach = std::max(reach, product + std::abs(key.logit.value));
          double const dlogit =
              key.probability * (absolute_dot(dout_row, p.v.data() + vb, p.value_dim) * key.dropout_factor + delta);
          add(sums.dv, vb, key.probability * key.dropout_factor, dout_row, p.value_dim);
          // A saturated soft cap has a slope near 0 that is itself a difference from 1.
          add(sums.dq, qb, dlogit * scale, p.k.data() + kb, p.head_dim);
          add(sums.dk, kb, dlogit * scale, query, p.head_dim);
          if (p.bias) sums.dbias[od::pair_offset(p, *p.bias, b, h, row, key.key)] += dlogit;
        }
        sums.lse[od::lse_place(p, b, h, row)] = reach;
        for (std::int64_t s = 0; p.sinks && s < p.sinks->count; ++s) {
          auto const place = static_cast<std::size_t>(h * p.sinks->count + s);
          sums.dsinks[place] += seen.softmax.probability(p.sinks->values[place]) * delta;
        }
      }
  return sums;
}

inline double norm(std::vector<double> const& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// ||seen - exact|| over finite elements; infinite if the two differ in their infinite elements or there is a NaN.
inline double distance(std::vector<double> const& seen, std::vector<double> const& exact) {
  if (seen.size() != exact.size()) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] == exact[i]) continue;
    if (!std::isfinite(exact[i]) || !std::isfinite(seen[i])) return std::numeric_limits<double>::infinity();
    sum += (seen[i] - exact[i]) * (seen[i] - exact[i]);
  }
  return std::sqrt(sum);
}

/// Relative bounds: `of_result` times the norm of the exact result, or `of_terms` times that of its terms.
struct Bounds {
  double of_result;
  double of_terms;
};
/// 2e-6 is about 17 float roundings of the result. 8 roundings of the terms allow for one sum, one product and one
/// exponential of a rounded logit in sequence.
inline constexpr Bounds float_bounds{2e-6, 8 * 6.0e-8};
inline constexpr Bounds double_bounds{1e-12, 8 * 1.2e-16};

struct Judgement {
  std::string complaint;  ///< empty: all results are within bounds
  double worst = 0;       ///< largest relative error of a result that is judged by its own norm
  bool by_result = true;  ///< every result is within of_result
};

inline Judgement judge(RingProblem const& given, RingResult const& seen, Bounds bounds) {
  RingProblem const problem = rounded_to_wire(given);
  OracleForward const forward = oracle_forward(problem.dense);
  OracleGradients const gradients = oracle_backward(problem.dense, problem.dout);
  std::optional<Magnitudes> terms;  // most results are within their first bound and need none
  Judgement verdict;
  auto const compare = [&](char const* name, std::vector<double> const& result, std::vector<double> const& exact,
                           std::vector<double> Magnitudes::*magnitude) {
    double const error = distance(result, exact);
    std::vector<double> finite = exact;
    for (double& value : finite)
      if (!std::isfinite(value)) value = 0;
    double const size = norm(finite);
    if (error <= bounds.of_result * size) {
      if (size > 0) verdict.worst = std::max(verdict.worst, error / size);
      return;
    }
    verdict.by_result = false;
    if (!terms) terms = magnitudes(problem.dense, problem.dout);
    double const size_of_terms = norm((*terms).*magnitude);
    if (!(error <= bounds.of_terms * size_of_terms))
      verdict.complaint += std::string(verdict.complaint.empty() ? "" : "; ") + name + " is off by " +
                           std::to_string(error / size) + " of its norm " + std::to_string(size) + ", by " +
                           std::to_string(error / size_of_terms) + " of its terms";
  };
  compare("output", seen.output, forward.output, &Magnitudes::output);
  compare("lse", seen.lse, forward.lse, &Magnitudes::lse);
  compare("dq", seen.dq, gradients.dq, &Magnitudes::dq);
  compare("dk", seen.dk, gradients.dk, &Magnitudes::dk);
  compare("dv", seen.dv, gradients.dv, &Magnitudes::dv);
  compare("dbias", seen.dbias, gradients.dbias, &Magnitudes::dbias);
  compare("dsinks", seen.dsinks, gradients.dsinks, &Magnitudes::dsinks);
  if (!verdict.complaint.empty()) verdict.complaint = problem.text + ": " + verdict.complaint;
  return verdict;
}

}  // namespace annulus_test
