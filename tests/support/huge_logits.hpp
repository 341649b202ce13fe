#pragma once
// Problems with rows whose logits are so large that rounding absorbs the logarithm of the number of keys.
// All logits are exact in every type, so that the oracle and a backend have the same ones.

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "support/small_ring_problem.hpp"

namespace annulus_test {

/// Random integer multiples of `reach` / 8 in [-reach, reach].
inline std::vector<double> multiples_of_an_eighth(std::mt19937_64& engine, std::size_t count, double reach) {
  std::vector<double> values(count);
  for (double& value : values) value = reach * (static_cast<double>(engine() % 17) / 8 - 1);
  return values;
}

/// Of three consecutive query rows, the first has logits of about `unit`^2 or half of it, the second their negatives,
/// the third ordinary ones. Three of four keys tie. With sink logits, one of two ties with the largest logits.
inline RingProblem huge_products(double unit, int ranks, annulus::Sharding sharding, annulus::Rotation rotation,
                                 bool with_sinks) {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 24, .value_dim = 3}, ranks,
                                           std::move(sharding), rotation);
  OracleProblem& d = problem.dense;
  std::mt19937_64 engine(5);
  d.softmax_scale = 1.0;
  d.q = multiples_of_an_eighth(engine, d.q.size(), 1);
  d.k = multiples_of_an_eighth(engine, d.k.size(), 1);
  d.v = multiples_of_an_eighth(engine, d.v.size(), 1);
  problem.dout = multiples_of_an_eighth(engine, problem.dout.size(), 1.0 / 16);
  for (std::int64_t row = 0; row < d.query_length * d.query_heads; ++row) {
    double* const q = &d.q[static_cast<std::size_t>(row * d.head_dim)];
    std::int64_t const kind = row / d.query_heads % 3;
    q[0] = kind == 0 ? unit : kind == 1 ? -unit : 0;
    for (std::int64_t i = 1; i < d.head_dim && kind != 2; ++i) q[i] = 0;
  }
  for (std::int64_t row = 0; row < d.key_length * d.kv_heads; ++row)
    d.k[static_cast<std::size_t>(row * d.head_dim)] = row / d.kv_heads % 4 == 3 ? unit / 2 : unit;
  if (with_sinks) {
    give_sinks(problem, 2);
    for (std::size_t s = 0; s < d.sinks->values.size(); s += 2) d.sinks->values[s] = unit * unit;
  }
  settle(problem);
  problem.text += ", logits of " + std::to_string(unit * unit);
  return problem;
}

/// Of each three query rows, the first has the bias `huge` for all keys, the second -huge, the third a small one.
inline RingProblem huge_bias(double huge, int ranks, annulus::Sharding sharding) {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 24, .value_dim = 3}, ranks,
                                           std::move(sharding));
  OracleProblem& d = problem.dense;
  std::mt19937_64 engine(6);
  d.softmax_scale = 0.5;
  d.q = multiples_of_an_eighth(engine, d.q.size(), 2);
  d.k = multiples_of_an_eighth(engine, d.k.size(), 2);
  d.v = multiples_of_an_eighth(engine, d.v.size(), 1);
  problem.dout = multiples_of_an_eighth(engine, problem.dout.size(), 1.0 / 16);
  give_bias(problem, 1, 4);
  d.bias->values = multiples_of_an_eighth(engine, d.bias->values.size(), 2);
  for (std::size_t pair = 0; pair < d.bias->values.size(); ++pair) {
    auto const kind = pair / static_cast<std::size_t>(d.key_length) % 3;
    if (kind != 2) d.bias->values[pair] = kind == 0 ? huge : -huge;
  }
  settle(problem);
  problem.text += ", bias of " + std::to_string(huge);
  return problem;
}

/// A value whose square is about 1e9, in double 1e30; for half smaller, so that gradients stay within its range.
template <class T>
constexpr double huge_unit = std::is_same_v<T, double>        ? 0x1p50
                             : std::is_same_v<T, Eigen::half> ? 0x1p13
                                                              : 0x1p15;

}  // namespace annulus_test
