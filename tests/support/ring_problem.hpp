#pragma once
// Ring problem: an oracle problem with its sharding over a ring, the input of every test of the whole library.

#include <annulus/attention/options.hpp>
#include <annulus/core/scalar.hpp>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/oracle.hpp"

namespace annulus_test {

struct RingProblem {
  OracleProblem dense;
  std::vector<double> dout;  ///< [batch, query_length, query_heads, value_dim]
  int ranks = 1;
  annulus::Options options;  ///< agrees with `dense`
  std::vector<annulus::Index> query_lengths, key_lengths;
  std::int64_t joint_length = 0;                 ///< keys that all ranks hold, not among those of `dense`
  std::vector<double> joint_keys, joint_values;  ///< [batch, joint_length, kv_heads, .]
  std::string text;                              ///< for the message of a failed test

  std::vector<annulus::Segment> segments(annulus::Side side, int rank) const {
    return options.sharding.segments(side, rank, side == annulus::Side::query ? query_lengths : key_lengths);
  }
};

/// Copies the options that the oracle has too, so that a test sets them once, in `dense`.
inline void take_options_from_dense(RingProblem& problem) {
  OracleProblem const& dense = problem.dense;
  annulus::Options& options = problem.options;
  options.mask = {.causal = dense.causal,
                  .window = {dense.window_left, dense.window_right},
                  .sink_tokens = dense.sink_tokens,
                  .chunk = dense.chunk};
  options.softmax_scale = dense.softmax_scale;
  options.logit_softcap = dense.logit_softcap;
  options.dropout = {dense.dropout_probability, dense.dropout_seed};
  options.query_offset = dense.query_offset;
}

/// Sets the lengths of the shards from the sharding. Call it after the sharding, ranks and lengths are set.
inline void take_lengths_from_sharding(RingProblem& problem) {
  using annulus::Side;
  problem.query_lengths = problem.options.sharding.lengths(Side::query, problem.ranks, problem.dense.query_length);
  problem.key_lengths = problem.options.sharding.lengths(Side::key, problem.ranks, problem.dense.key_length);
}

inline std::vector<double> uniform(std::mt19937_64& engine, std::int64_t count, double reach = 1) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = reach * (2.0 * static_cast<double>(engine() >> 11) / 9007199254740992.0 - 1.0);
  return values;
}

/// Sets random q, k, v and dout with the extents in `dense`.
inline void fill_operands(RingProblem& problem, std::mt19937_64& engine) {
  OracleProblem& d = problem.dense;
  d.q = uniform(engine, d.batch * d.query_length * d.query_heads * d.head_dim);
  d.k = uniform(engine, d.batch * d.key_length * d.kv_heads * d.head_dim);
  d.v = uniform(engine, d.batch * d.key_length * d.kv_heads * d.value_dim);
  problem.dout = uniform(engine, d.batch * d.query_length * d.query_heads * d.value_dim);
}

template <class T>
void round_values(std::vector<double>& values) {
  for (double& value : values) value = static_cast<double>(annulus::detail::round_once<T>(value));
}

/// Rounds all operands to values that T holds exactly, so that the oracle and the library read the same numbers.
/// Operands of 16 bits travel as stored.
template <class T>
void round_operands(RingProblem& problem) {
  for (auto* values : {&problem.dense.q, &problem.dense.k, &problem.dense.v, &problem.dout, &problem.joint_keys,
                       &problem.joint_values})
    round_values<T>(*values);
  if (sizeof(T) == 2) problem.options.wire = annulus::Wire::as_stored;
  if (problem.dense.bias) round_values<T>(problem.dense.bias->values);
  if (problem.dense.sinks)
    for (double& sink : problem.dense.sinks->values)
      sink = static_cast<double>(static_cast<annulus::Accumulator<T>>(sink));
}

/// The problem of which a ring gives the results: q, k, v and dout are rounded to the wire type.
inline RingProblem rounded_to_wire(RingProblem problem) {
  for (auto* values : {&problem.dense.q, &problem.dense.k, &problem.dense.v, &problem.dout}) {
    if (problem.options.wire == annulus::Wire::bfloat16) round_values<Eigen::bfloat16>(*values);
    if (problem.options.wire == annulus::Wire::half) round_values<Eigen::half>(*values);
  }
  return problem;
}

}  // namespace annulus_test
