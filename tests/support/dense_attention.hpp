#pragma once
// Dense attention, forward and backward, row by row. Real is the type of all arithmetic; `round_to`
// (double -> double) narrows the values that a dense implementation would store in the operands' type: weights, output,
// logit gradients, results.

#include <cstdint>
#include <limits>
#include <vector>

#include "support/oracle_row.hpp"

namespace annulus_test {

struct OracleForward {
  std::vector<double> output;  ///< [batch, query_length, query_heads, value_dim]; masked rows: 0
  std::vector<double> lse;     ///< [batch, query_heads, query_length], natural log, with sink logits; masked rows: -inf
};

struct OracleGradients {
  std::vector<double> dq, dk, dv;  ///< extents of q, k, v
  std::vector<double> dbias;       ///< extents of bias, summed over its broadcast axes; empty without a bias
  std::vector<double> dsinks;      ///< extents of sinks; empty without sink logits
};

namespace oracle_detail {

template <class Real, class Round>
Real rounded(Round const& round_to, Real value) {
  return static_cast<Real>(round_to(static_cast<double>(value)));
}

/// One row of output, rounded.
template <class Real, class Round>
void row_output(OracleProblem const& p, std::int64_t batch, std::int64_t head, SeenRow<Real> const& seen,
                Round const& round_to, std::vector<Real>& output) {
  output.assign(static_cast<std::size_t>(p.value_dim), Real{0});
  for (auto const& seen_key : seen.keys) {
    Real const weight = rounded(round_to, seen_key.probability * seen_key.dropout_factor);
    if (weight == 0) continue;
    double const* value = &p.v[static_cast<std::size_t>(v_begin(p, batch, kv_head_of(p, head), seen_key.key))];
    for (std::int64_t i = 0; i < p.value_dim; ++i)
      output[static_cast<std::size_t>(i)] += weight * static_cast<Real>(value[i]);
  }
  for (Real& element : output) element = rounded(round_to, element);
}

template <class Real, class Round>
OracleForward dense_forward(OracleProblem const& p, Round const& round_to) {
  expect_consistent(p);
  OracleForward result;
  result.output.resize(static_cast<std::size_t>(p.batch * p.query_length * p.query_heads * p.value_dim));
  result.lse.resize(static_cast<std::size_t>(p.batch * p.query_heads * p.query_length));
  SeenRow<Real> seen;
  std::vector<Real> output;
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t head = 0; head < p.query_heads; ++head)
      for (std::int64_t row = 0; row < p.query_length; ++row) {
        look(p, batch, head, row, seen);
        row_output(p, batch, head, seen, round_to, output);
        std::int64_t const begin = output_begin(p, batch, head, row);
        for (std::int64_t i = 0; i < p.value_dim; ++i)
          result.output[static_cast<std::size_t>(begin + i)] = static_cast<double>(output[static_cast<std::size_t>(i)]);
        result.lse[lse_place(p, batch, head, row)] = static_cast<double>(seen.softmax.lse());
      }
  return result;
}

/// Sums of the backward pass, in Real until the end.
template <class Real>
struct GradientSums {
  std::vector<Real> dq, dk, dv, dbias, dsinks;

  explicit GradientSums(OracleProblem const& p)
      : dq(p.q.size()),
        dk(p.k.size()),
        dv(p.v.size()),
        dbias(p.bias ? p.bias->values.size() : 0),
        dsinks(p.sinks ? p.sinks->values.size() : 0) {}
};

/// sum[begin + i] += factor * row[i]
template <class Real>
void add_scaled(std::vector<Real>& sum, std::int64_t begin, Real factor, double const* row, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    sum[static_cast<std::size_t>(begin + i)] += factor * static_cast<Real>(row[i]);
}

template <class Real, class Round>
void add_row_gradients(OracleProblem const& p, std::vector<double> const& dout, std::int64_t batch, std::int64_t head,
                       std::int64_t row, SeenRow<Real> const& seen, std::vector<Real> const& output,
                       Round const& round_to, GradientSums<Real>& sums) {
  std::int64_t const kv_head = kv_head_of(p, head);
  std::int64_t const query_begin = q_begin(p, batch, head, row);
  double const* const query = &p.q[static_cast<std::size_t>(query_begin)];
  double const* const dout_row = &dout[static_cast<std::size_t>(output_begin(p, batch, head, row))];
  Real delta = 0;
  for (std::int64_t i = 0; i < p.value_dim; ++i)
    delta += static_cast<Real>(dout_row[i]) * output[static_cast<std::size_t>(i)];

  for (auto const& [key, logit, probability, dropout_factor] : seen.keys) {
    if (probability == 0) continue;
    std::int64_t const value_begin = v_begin(p, batch, kv_head, key);
    std::int64_t const key_begin = k_begin(p, batch, kv_head, key);
    Real const dweight = dot<Real>(dout_row, &p.v[static_cast<std::size_t>(value_begin)], p.value_dim);
    Real const dlogit = probability * (dweight * dropout_factor - delta);
    // Narrowed before the scale is applied, as in a dense product of stored logit gradients.
    Real const dproduct = rounded(round_to, dlogit * logit.cap_slope) * scale_of<Real>(p);
    add_scaled(sums.dv, value_begin, rounded(round_to, probability * dropout_factor), dout_row, p.value_dim);
    add_scaled(sums.dq, query_begin, dproduct, &p.k[static_cast<std::size_t>(key_begin)], p.head_dim);
    add_scaled(sums.dk, key_begin, dproduct, query, p.head_dim);
    if (p.bias) sums.dbias[pair_offset(p, *p.bias, batch, head, row, key)] += dlogit;
  }
  if (p.sinks)
    for (std::int64_t sink = 0; sink < p.sinks->count; ++sink) {
      auto const place = static_cast<std::size_t>(head * p.sinks->count + sink);
      sums.dsinks[place] -= seen.softmax.probability(static_cast<Real>(p.sinks->values[place])) * delta;
    }
}

template <class Real, class Round>
OracleGradients dense_backward(OracleProblem const& p, std::vector<double> const& dout, Round const& round_to) {
  expect_consistent(p);
  expect_size("dout", dout.size(), p.batch * p.query_length * p.query_heads * p.value_dim);
  GradientSums<Real> sums(p);
  SeenRow<Real> seen;
  std::vector<Real> output;
  for (std::int64_t batch = 0; batch < p.batch; ++batch)
    for (std::int64_t head = 0; head < p.query_heads; ++head)
      for (std::int64_t row = 0; row < p.query_length; ++row) {
        look(p, batch, head, row, seen);
        if (seen.keys.empty()) continue;  // output is constant 0: no gradient, even for a NaN dout
        row_output(p, batch, head, seen, round_to, output);
        add_row_gradients(p, dout, batch, head, row, seen, output, round_to, sums);
      }
  auto const narrowed = [&round_to](std::vector<Real> const& sum) {
    std::vector<double> result(sum.size());
    for (std::size_t i = 0; i < sum.size(); ++i) result[i] = round_to(static_cast<double>(sum[i]));
    return result;
  };
  return {narrowed(sums.dq), narrowed(sums.dk), narrowed(sums.dv), narrowed(sums.dbias), narrowed(sums.dsinks)};
}

}  // namespace oracle_detail
}  // namespace annulus_test
