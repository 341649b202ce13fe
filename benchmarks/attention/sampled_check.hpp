#pragma once
// Check of sampled result rows against dense attention in double, the oracle of the tests.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "attention/program.hpp"
#include "support/larger_error.hpp"
#include "support/oracle.hpp"

namespace annulus_bench {

/// Rows of the first and the last head, from both ends and between, with their exact values.
class SampledRows {
 public:
  SampledRows(AttentionCase const& c, Operands const& operands) {
    // The oracle of one head counts it as head 0, which dropout depends on.
    bool const first_alone = c.heads == 1 || c.option == OptionKind::dropout;
    for (Index head : first_alone ? std::vector<Index>{0} : std::vector<Index>{0, c.heads - 1}) {
      annulus_test::OracleProblem const problem = one_head(c, operands, head);
      std::vector<double> const dout = column_of(operands.dout, head);
      annulus_test::OracleGradientRows gradients(problem, dout);
      for (Index row : rows(c.tokens)) {
        annulus_test::OracleRow exact = annulus_test::oracle_row(problem, 0, 0, row);
        samples_.push_back({Quantity::output, head, row, std::move(exact.output)});
        samples_.push_back({Quantity::lse, head, row, {exact.lse}});
        if (c.pass == Pass::backward)
          samples_.push_back(
              {Quantity::dq, head, row, gradients.dq(0, 0, row), cancelled_terms(c, problem, dout, row)});
      }
      // The gradient of a key needs the statistics of all rows that see it, so one head is checked.
      if (c.pass == Pass::forward || (head != c.heads - 1 && !first_alone)) continue;
      for (Index row : rows(c.tokens)) {
        auto exact = gradients.dk_dv(0, 0, row);
        samples_.push_back({Quantity::dk, head, row, std::move(exact.dk)});
        samples_.push_back({Quantity::dv, head, row, std::move(exact.dv)});
      }
    }
  }

  /// Largest error of the pass's quantities: the norm over all samples relative to that of the exact values.
  /// row(quantity, head, row) returns the computed row.
  template <class Row>
  double error(Pass pass, Row&& row) const {
    std::map<Quantity, std::pair<double, double>> sums;
    for (Sample const& sample : samples_) {
      bool const gradient = sample.quantity != Quantity::output && sample.quantity != Quantity::lse;
      if (gradient != (pass == Pass::backward)) continue;
      std::vector<double> const seen = row(sample.quantity, sample.head, sample.row);
      if (seen.size() != sample.exact.size()) return std::numeric_limits<double>::infinity();
      auto& [difference, size] = sums[sample.quantity];
      for (std::size_t d = 0; d < seen.size(); ++d) {
        difference += std::pow(seen[d] - sample.exact[d], 2);
        size += std::pow(sample.exact[d], 2);
      }
      size += std::pow(sample.terms, 2);
    }
    double worst = 0;
    for (auto const& [quantity, sum] : sums)
      worst = annulus_test::larger_error(worst, std::sqrt(sum.first / sum.second));
    return worst;
  }

 private:
  struct Sample {
    Quantity quantity;
    Index head, row;
    std::vector<double> exact;
    double terms = 0;  ///< norm of terms that cancel, added to that of the exact values
  };

  /// Norm of the terms whose difference is dq: the sums of P * dP * k and of P * delta * k are nearly equal where a row
  /// sees few keys, and equal where it sees one. Rounding errors are relative to them.
  static double cancelled_terms(AttentionCase const& c, annulus_test::OracleProblem const& problem,
                                std::vector<double> const& dout, Index row) {
    annulus_test::OracleProblem keys = problem;
    keys.v = keys.k;
    std::vector<double> const output = annulus_test::oracle_row(problem, 0, 0, row).output,
                              mean_key = annulus_test::oracle_row(keys, 0, 0, row).output;
    double delta = 0, key = 0;
    for (std::size_t d = 0; d < output.size(); ++d) {
      delta += std::pow(output[d] * dout[static_cast<std::size_t>(row * c.head_dim) + d], 2);
      key += std::pow(mean_key[d], 2);
    }
    return std::sqrt(delta * key / static_cast<double>(c.head_dim));
  }

  static std::vector<Index> rows(Index tokens) {
    std::vector<Index> rows{0, 1, tokens / 3, tokens / 2 + 7, tokens - 2, tokens - 1};
    rows.erase(std::remove_if(rows.begin(), rows.end(), [&](Index row) { return row < 0 || row >= tokens; }),
               rows.end());
    return rows;
  }

  static std::vector<double> column_of(FloatTensor const& tensor, Index head) {
    std::vector<double> values;
    values.reserve(static_cast<std::size_t>(tensor.dimension(1) * tensor.dimension(3)));
    for (Index i = 0; i < tensor.dimension(1); ++i)
      for (Index d = 0; d < tensor.dimension(3); ++d) values.push_back(static_cast<double>(tensor(0, i, head, d)));
    return values;
  }

  static annulus_test::OracleProblem one_head(AttentionCase const& c, Operands const& operands, Index head) {
    annulus_test::OracleProblem problem;
    problem.query_length = problem.key_length = c.tokens;
    problem.head_dim = problem.value_dim = c.head_dim;
    problem.causal = is_causal(c.mask);
    if (c.mask == MaskKind::window) {
      problem.window_left = window_keys - 1;
      problem.window_right = 0;
    }
    if (has_documents(c.mask)) {
      std::vector<int> ids;
      for (std::int32_t id : document_ids(c.mask, c.tokens)) ids.push_back(id);
      problem.query_documents = ids;
      problem.key_documents = ids;
    }
    if (c.option == OptionKind::soft_cap) problem.logit_softcap = soft_cap;
    if (c.option == OptionKind::dropout) {
      problem.dropout_probability = dropout_probability;
      problem.dropout_seed = dropout_seed;
    }
    auto const pairs = [&]<class Value>(std::optional<annulus_test::OraclePairs<Value>>& of, auto&& value) {
      of.emplace();
      for (Index i = 0; i < c.tokens; ++i)
        for (Index j = 0; j < c.tokens; ++j) of->values.push_back(static_cast<Value>(value(i, j)));
    };
    if (c.option == OptionKind::bias || c.option == OptionKind::bias_gradient)
      pairs(problem.bias, [&](Index i, Index j) { return bias_at(c, head, i, j); });
    if (c.option == OptionKind::bias_row) pairs(problem.bias, [&](Index, Index j) { return bias_at(c, head, 0, j); });
    if (c.option == OptionKind::mask_random || c.option == OptionKind::mask_blocks)
      pairs(problem.mask, [&](Index i, Index j) { return mask_at(c.option, i, j); });
    if (c.option == OptionKind::predicate)
      problem.predicate = [](std::int64_t, std::int64_t, std::int64_t query, std::int64_t key) { return key <= query; };
    problem.q = column_of(operands.q, head);
    problem.k = column_of(operands.k, head);
    problem.v = column_of(operands.v, head);
    return problem;
  }

  std::vector<Sample> samples_;
};

/// Bound of the relative error. 16-bit types: 4 roundings, as probabilities, gradients of logits and results are each
/// rounded once; sums are in float. Float and double: 32 roundings, or if larger 2 roundings of the terms of a long
/// sum: they have either sign, so that the sum over n keys is about sqrt(n) times smaller than they are together.
inline double error_bound(AttentionCase const& c) {
  double const roundings = std::max(32.0, 2 * std::sqrt(static_cast<double>(c.tokens)));
  switch (c.type) {
    case DataType::float64:
      return roundings * 0x1p-53;
    case DataType::float32:
      return roundings * 0x1p-24;
    case DataType::float16:
      return 4 * 0x1p-11;
    case DataType::bfloat16:
      return 4 * 0x1p-8;
  }
  return 0;
}

/// The exact rows of a case, computed once for all programs and numbers of threads.
inline SampledRows const& sampled_rows(AttentionCase const& c, Operands const& operands) {
  static std::map<std::tuple<Pass, MaskKind, OptionKind, DataType, Index, Index, Index>, SampledRows> known;
  auto const key = std::tuple(c.pass, c.mask, c.option, c.type, c.tokens, c.head_dim, c.heads);
  auto found = known.find(key);
  if (found == known.end()) found = known.emplace(key, SampledRows(c, operands)).first;
  return found->second;
}

}  // namespace annulus_bench
