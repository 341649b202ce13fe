#pragma once
// One row of dense attention: the visible keys of a query and their weights. The order of operations on a logit is
// q.k * scale, soft cap, + bias, mask, softmax with sink logits, dropout.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/oracle_philox.hpp"
#include "support/oracle_problem.hpp"

namespace annulus_test::oracle_detail {

/// Real is the type of all arithmetic. Four running sums, because a single one is bound by the latency of additions.
template <class Real>
Real dot(double const* a, double const* b, std::int64_t count) {
  Real sum[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int lane = 0; lane < 4; ++lane) sum[lane] += static_cast<Real>(a[i + lane]) * static_cast<Real>(b[i + lane]);
  for (; i < count; ++i) sum[0] += static_cast<Real>(a[i]) * static_cast<Real>(b[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

inline std::int64_t kv_head_of(OracleProblem const& p, std::int64_t head) {
  return head / (p.query_heads / p.kv_heads);
}

// First element of a row of q (or dq), k (or dk), v (or dv), output (or dout).
inline std::int64_t q_begin(OracleProblem const& p, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return ((batch * p.query_length + row) * p.query_heads + head) * p.head_dim;
}
inline std::int64_t k_begin(OracleProblem const& p, std::int64_t batch, std::int64_t kv_head, std::int64_t key) {
  return ((batch * p.key_length + key) * p.kv_heads + kv_head) * p.head_dim;
}
inline std::int64_t v_begin(OracleProblem const& p, std::int64_t batch, std::int64_t kv_head, std::int64_t key) {
  return ((batch * p.key_length + key) * p.kv_heads + kv_head) * p.value_dim;
}
inline std::int64_t output_begin(OracleProblem const& p, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return ((batch * p.query_length + row) * p.query_heads + head) * p.value_dim;
}
/// Index of a row in lse, [batch, query_heads, query_length].
inline std::size_t lse_place(OracleProblem const& p, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return static_cast<std::size_t>((batch * p.query_heads + head) * p.query_length + row);
}

template <class Real>
Real scale_of(OracleProblem const& p) {
  return static_cast<Real>(p.softmax_scale ? *p.softmax_scale : 1.0 / std::sqrt(static_cast<double>(p.head_dim)));
}

template <class Real>
struct Logit {
  Real value;
  Real cap_slope;  ///< derivative of the soft cap at q.k * scale; 1 without a cap
};

template <class Real>
Logit<Real> logit_of(OracleProblem const& p, std::int64_t batch, std::int64_t head, std::int64_t row,
                     std::int64_t key) {
  Real value = dot<Real>(&p.q[static_cast<std::size_t>(q_begin(p, batch, head, row))],
                         &p.k[static_cast<std::size_t>(k_begin(p, batch, kv_head_of(p, head), key))], p.head_dim) *
               scale_of<Real>(p);
  Real cap_slope = 1;
  if (p.logit_softcap != 0) {
    auto const cap = static_cast<Real>(p.logit_softcap);
    Real const cosh = std::cosh(value / cap);
    cap_slope = 1 / cosh / cosh;
    value = cap * std::tanh(value / cap);
  }
  if (p.bias) value += static_cast<Real>(p.bias->values[pair_offset(p, *p.bias, batch, head, row, key)]);
  return {value, cap_slope};
}

/// Factor of dropout on a probability: 0 for a dropped one, 1 / (1 - probability) for a kept one.
template <class Real>
Real dropout_factor(OracleProblem const& p, std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t key) {
  if (p.dropout_probability == 0) return 1;
  if (!oracle_dropout_keeps(p.dropout_probability, p.dropout_seed, batch, head, row + p.query_offset, key)) return 0;
  return static_cast<Real>(1.0 / (1.0 - p.dropout_probability));
}

/// Softmax statistics of one row, with sink logits. A row without any finite logit has maximum -inf and sum 0.
template <class Real>
struct SoftmaxStatistics {
  Real maximum = -std::numeric_limits<Real>::infinity();
  Real sum = 0;

  bool empty() const { return sum == 0; }
  Real probability(Real logit) const { return empty() ? Real{0} : std::exp(logit - maximum) / sum; }
  Real lse() const { return empty() ? maximum : maximum + std::log(sum); }
};

template <class Real>
struct SeenKey {
  std::int64_t key;
  Logit<Real> logit;
  Real probability;     ///< after the softmax, before dropout
  Real dropout_factor;  ///< the factor of v is probability * dropout_factor
};

template <class Real>
struct SeenRow {
  std::vector<SeenKey<Real>> keys;  ///< the visible ones, ascending
  SoftmaxStatistics<Real> softmax;
};

/// Fills `seen` with the visible keys of query `row` of (batch, head).
template <class Real>
void look(OracleProblem const& p, std::int64_t batch, std::int64_t head, std::int64_t row, SeenRow<Real>& seen) {
  seen.keys.clear();
  for (std::int64_t key = 0; key < p.key_length; ++key)
    if (oracle_visible(p, batch, head, row, key))
      seen.keys.push_back(
          {key, logit_of<Real>(p, batch, head, row, key), Real{0}, dropout_factor<Real>(p, batch, head, row, key)});

  std::vector<Real> logits;
  for (auto const& seen_key : seen.keys) logits.push_back(seen_key.logit.value);
  if (p.sinks)
    for (std::int64_t sink = 0; sink < p.sinks->count; ++sink)
      logits.push_back(static_cast<Real>(p.sinks->values[static_cast<std::size_t>(head * p.sinks->count + sink)]));

  SoftmaxStatistics<Real> softmax;
  for (Real logit : logits) softmax.maximum = std::max(softmax.maximum, logit);
  if (softmax.maximum != -std::numeric_limits<Real>::infinity())
    for (Real logit : logits) softmax.sum += std::exp(logit - softmax.maximum);
  for (auto& seen_key : seen.keys) seen_key.probability = softmax.probability(seen_key.logit.value);
  seen.softmax = softmax;
}

}  // namespace annulus_test::oracle_detail
