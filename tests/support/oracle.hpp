#pragma once
// Oracle of the tests: dense attention in double on one process, written independently of the library.

#include <cstdint>
#include <utility>
#include <vector>

#include "support/dense_attention.hpp"

namespace annulus_test {

namespace oracle_detail {

/// The identity: no rounding.
struct Exact {
  double operator()(double value) const { return value; }
};

}  // namespace oracle_detail

/// output and lse of the whole problem.
inline OracleForward oracle_forward(OracleProblem const& problem) {
  return oracle_detail::dense_forward<double>(problem, oracle_detail::Exact{});
}

/// Gradients of sum(dout * output); dout [batch, query_length, query_heads, value_dim].
inline OracleGradients oracle_backward(OracleProblem const& problem, std::vector<double> const& dout) {
  return oracle_detail::dense_backward<double>(problem, dout, oracle_detail::Exact{});
}

struct OracleRow {
  std::vector<double> output;  ///< [value_dim]
  double lse;
};

/// One row of the forward pass; `row` counts from 0, without query_offset.
inline OracleRow oracle_row(OracleProblem const& problem, std::int64_t batch, std::int64_t head, std::int64_t row) {
  expect_consistent(problem);
  oracle_detail::SeenRow<double> seen;
  OracleRow result;
  oracle_detail::look(problem, batch, head, row, seen);
  oracle_detail::row_output(problem, batch, head, seen, oracle_detail::Exact{}, result.output);
  result.lse = seen.softmax.lse();
  return result;
}

/// Single rows of the gradients of long problems. Statistics of a query row are computed when first needed and kept,
/// so that any number of samples costs at most one forward pass over the heads they touch.
/// Keeps references: problem and dout must outlive it, unchanged.
class OracleGradientRows {
 public:
  struct KeyRow {
    std::vector<double> dk;  ///< [head_dim]
    std::vector<double> dv;  ///< [value_dim]
  };

  OracleGradientRows(OracleProblem const& problem, std::vector<double> const& dout) : problem_(problem), dout_(dout) {
    expect_consistent(problem);
    oracle_detail::expect_size("dout", dout.size(),
                               problem.batch * problem.query_length * problem.query_heads * problem.value_dim);
    statistics_.resize(static_cast<std::size_t>(problem.batch * problem.query_heads * problem.query_length));
  }
  OracleGradientRows(OracleProblem&&, std::vector<double> const&) = delete;
  OracleGradientRows(OracleProblem const&, std::vector<double>&&) = delete;

  /// Row of dq, [head_dim].
  std::vector<double> dq(std::int64_t batch, std::int64_t head, std::int64_t row) {
    std::vector<double> result(static_cast<std::size_t>(problem_.head_dim));
    std::int64_t const kv_head = oracle_detail::kv_head_of(problem_, head);
    for (std::int64_t key = 0; key < problem_.key_length; ++key) {
      if (!oracle_visible(problem_, batch, head, row, key)) continue;
      double const* key_row =
          &problem_.k[static_cast<std::size_t>(oracle_detail::k_begin(problem_, batch, kv_head, key))];
      oracle_detail::add_scaled(result, 0, pair(batch, head, row, key).dproduct, key_row, problem_.head_dim);
    }
    return result;
  }

  /// Rows of dk and dv, summed over the query heads that read `kv_head`.
  KeyRow dk_dv(std::int64_t batch, std::int64_t kv_head, std::int64_t key) {
    KeyRow result{std::vector<double>(static_cast<std::size_t>(problem_.head_dim)),
                  std::vector<double>(static_cast<std::size_t>(problem_.value_dim))};
    std::int64_t const group = problem_.query_heads / problem_.kv_heads;
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (std::int64_t row = 0; row < problem_.query_length; ++row) {
        if (!oracle_visible(problem_, batch, head, row, key)) continue;
        PairGradient const gradient = pair(batch, head, row, key);
        double const* query = &problem_.q[static_cast<std::size_t>(oracle_detail::q_begin(problem_, batch, head, row))];
        oracle_detail::add_scaled(result.dk, 0, gradient.dproduct, query, problem_.head_dim);
        oracle_detail::add_scaled(result.dv, 0, gradient.weight, dout_row(batch, head, row), problem_.value_dim);
      }
    return result;
  }

 private:
  struct RowStatistics {
    bool known = false;
    oracle_detail::SoftmaxStatistics<double> softmax;
    double delta = 0;
  };

  struct PairGradient {
    double weight;    ///< factor of v
    double dproduct;  ///< gradient of q.k
  };

  double const* dout_row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return &dout_[static_cast<std::size_t>(oracle_detail::output_begin(problem_, batch, head, row))];
  }

  RowStatistics const& statistics(std::int64_t batch, std::int64_t head, std::int64_t row) {
    RowStatistics& statistics = statistics_[oracle_detail::lse_place(problem_, batch, head, row)];
    if (statistics.known) return statistics;
    oracle_detail::look(problem_, batch, head, row, seen_);
    oracle_detail::row_output(problem_, batch, head, seen_, oracle_detail::Exact{}, output_);
    statistics = {true, seen_.softmax,
                  oracle_detail::dot<double>(dout_row(batch, head, row), output_.data(), problem_.value_dim)};
    return statistics;
  }

  PairGradient pair(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) {
    RowStatistics const& of_row = statistics(batch, head, row);
    auto const logit = oracle_detail::logit_of<double>(problem_, batch, head, row, key);
    double const probability = of_row.softmax.probability(logit.value);
    if (probability == 0) return {0, 0};
    double const factor = oracle_detail::dropout_factor<double>(problem_, batch, head, row, key);
    double const* value = &problem_.v[static_cast<std::size_t>(
        oracle_detail::v_begin(problem_, batch, oracle_detail::kv_head_of(problem_, head), key))];
    double const dweight = oracle_detail::dot<double>(dout_row(batch, head, row), value, problem_.value_dim);
    double const dlogit = probability * (dweight * factor - of_row.delta);
    return {probability * factor, dlogit * logit.cap_slope * oracle_detail::scale_of<double>(problem_)};
  }

  OracleProblem const& problem_;
  std::vector<double> const& dout_;
  std::vector<RowStatistics> statistics_;
  oracle_detail::SeenRow<double> seen_;
  std::vector<double> output_;
};

}  // namespace annulus_test
