#pragma once
// Small random problems for the tests of the oracle itself.

#include <cstdint>
#include <random>
#include <vector>

#include "support/oracle.hpp"

namespace annulus_test {

inline std::vector<double> uniform_values(std::mt19937_64& engine, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = 2.0 * static_cast<double>(engine() >> 11) / 0x1p53 - 1.0;
  return values;
}

/// Batch 2, 4 query heads on 2 kv heads, 5 queries, 6 keys, head_dim 3, value_dim 2; q, k and v uniform in [-1, 1].
inline OracleProblem small_problem(std::mt19937_64& engine) {
  OracleProblem problem;
  problem.batch = 2;
  problem.query_heads = 4;
  problem.kv_heads = 2;
  problem.query_length = 5;
  problem.key_length = 6;
  problem.head_dim = 3;
  problem.value_dim = 2;
  problem.q = uniform_values(engine, problem.batch * problem.query_length * problem.query_heads * problem.head_dim);
  problem.k = uniform_values(engine, problem.batch * problem.key_length * problem.kv_heads * problem.head_dim);
  problem.v = uniform_values(engine, problem.batch * problem.key_length * problem.kv_heads * problem.value_dim);
  return problem;
}

inline std::vector<double> output_gradient(std::mt19937_64& engine, OracleProblem const& problem) {
  return uniform_values(engine, problem.batch * problem.query_length * problem.query_heads * problem.value_dim);
}

inline OraclePairs<double> random_bias(std::mt19937_64& engine, OracleProblem const& problem, std::int64_t batch,
                                       std::int64_t heads) {
  return {batch, heads, uniform_values(engine, batch * heads * problem.query_length * problem.key_length)};
}

inline OraclePairs<char> random_mask(std::mt19937_64& engine, OracleProblem const& problem, std::int64_t batch,
                                     std::int64_t heads) {
  OraclePairs<char> mask{batch, heads, {}};
  for (std::int64_t i = 0; i < batch * heads * problem.query_length * problem.key_length; ++i)
    mask.values.push_back(engine() % 3 != 0 ? 1 : 0);
  return mask;
}

}  // namespace annulus_test
