// The oracle's forward pass: cases worked by hand, and the written definition evaluated literally in long double.

#include "support/oracle.hpp"
#include "support/catch.hpp"
#include "support/dense_same_precision.hpp"

#include <Eigen/Core>
#include <cmath>
#include <limits>

#include "oracle/problem_builder.hpp"

using namespace annulus_test;

namespace {

double const infinity = std::numeric_limits<double>::infinity();
double const epsilon = std::numeric_limits<double>::epsilon();

double norm(std::vector<double> const& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

double distance(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  std::vector<double> difference(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return norm(difference);
}

/// One batch, one head, one query, keys of head_dim 1 with q = 1: the logits are k times the scale.
OracleProblem one_row(std::vector<double> keys, std::vector<double> values) {
  OracleProblem problem;
  problem.key_length = static_cast<std::int64_t>(keys.size());
  problem.value_dim = static_cast<std::int64_t>(values.size() / keys.size());
  problem.q = {1.0};
  problem.k = std::move(keys);
  problem.v = std::move(values);
  return problem;
}

/// The definition of the output and lse of one row, term by term; it shares only the visibility with the oracle.
void check_against_definition(OracleProblem const& p, OracleForward const& seen, std::int64_t b, std::int64_t h,
                              std::int64_t i) {
  auto const at = [](std::vector<double> const& values, std::int64_t place) {
    return static_cast<long double>(values[static_cast<std::size_t>(place)]);
  };
  std::int64_t const kv_head = h / (p.query_heads / p.kv_heads);
  long double denominator = 0;
  if (p.sinks)
    for (std::int64_t n = 0; n < p.sinks->count; ++n)
      denominator += std::exp(at(p.sinks->values, h * p.sinks->count + n));
  std::vector<long double> numerator(static_cast<std::size_t>(p.value_dim));
  for (std::int64_t j = 0; j < p.key_length; ++j) {
    if (!oracle_visible(p, b, h, i, j)) continue;
    long double x = 0;
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      x += at(p.q, ((b * p.query_length + i) * p.query_heads + h) * p.head_dim + d) *
           at(p.k, ((b * p.key_length + j) * p.kv_heads + kv_head) * p.head_dim + d);
    x *= static_cast<long double>(p.softmax_scale ? *p.softmax_scale : 1 / std::sqrt(static_cast<double>(p.head_dim)));
    if (p.logit_softcap != 0) x = p.logit_softcap * std::tanh(x / p.logit_softcap);
    if (p.bias)
      x += at(p.bias->values,
              (((p.bias->batch == 1 ? 0 : b) * p.bias->heads + (p.bias->heads == 1 ? 0 : h)) * p.query_length + i) *
                      p.key_length +
                  j);
    denominator += std::exp(x);
    if (oracle_dropout_keeps(p.dropout_probability, p.dropout_seed, b, h, i + p.query_offset, j))
      for (std::int64_t d = 0; d < p.value_dim; ++d)
        numerator[static_cast<std::size_t>(d)] +=
            std::exp(x) / (1 - p.dropout_probability) *
            at(p.v, ((b * p.key_length + j) * p.kv_heads + kv_head) * p.value_dim + d);
  }
  // Logits are below 4 and rows have 6 keys: 64 units of rounding are several times what the sums can lose.
  double const tolerance = 64 * epsilon;
  CAPTURE(b, h, i);
  double const lse = seen.lse[static_cast<std::size_t>((b * p.query_heads + h) * p.query_length + i)];
  if (denominator == 0)
    CHECK(lse == -infinity);
  else
    CHECK(std::abs(lse - static_cast<double>(std::log(denominator))) <= tolerance);
  for (std::int64_t d = 0; d < p.value_dim; ++d) {
    double const expected =
        denominator == 0 ? 0 : static_cast<double>(numerator[static_cast<std::size_t>(d)] / denominator);
    double const output =
        seen.output[static_cast<std::size_t>(((b * p.query_length + i) * p.query_heads + h) * p.value_dim + d)];
    CHECK(std::abs(output - expected) <= tolerance);
  }
}

}  // namespace

TEST_CASE("two keys have the probabilities of the logistic function", "[oracle]") {
  auto const problem = one_row({0.0, std::log(3.0)}, {4.0, 8.0});
  auto const forward = oracle_forward(problem);
  CHECK(std::abs(forward.output[0] - 7.0) <= 8 * epsilon * 7.0);
  CHECK(std::abs(forward.lse[0] - std::log(4.0)) <= 4 * epsilon);

  // p = (1/4, 3/4), delta = 7, dlogit = p * (v - delta) = (-3/4, 3/4).
  auto const gradients = oracle_backward(problem, {1.0});
  CHECK(std::abs(gradients.dv[0] - 0.25) <= 8 * epsilon);
  CHECK(std::abs(gradients.dv[1] - 0.75) <= 8 * epsilon);
  CHECK(std::abs(gradients.dk[0] + 0.75) <= 32 * epsilon);
  CHECK(std::abs(gradients.dk[1] - 0.75) <= 32 * epsilon);
  CHECK(std::abs(gradients.dq[0] - 0.75 * std::log(3.0)) <= 32 * epsilon);
}

TEST_CASE("a sink logit adds to the softmax denominator and has no value", "[oracle]") {
  auto problem = one_row({0.0, 0.0}, {4.0, 8.0});
  problem.sinks = OracleSinks{2, {0.0, 0.0}};
  auto const forward = oracle_forward(problem);
  CHECK(std::abs(forward.output[0] - 3.0) <= 8 * epsilon * 3.0);
  CHECK(std::abs(forward.lse[0] - std::log(4.0)) <= 4 * epsilon);
  auto const gradients = oracle_backward(problem, {1.0});
  CHECK(std::abs(gradients.dsinks[0] + 0.75) <= 8 * epsilon);
  CHECK(gradients.dsinks[0] == gradients.dsinks[1]);
}

TEST_CASE("scale 0 gives the mean of the visible values, a negative scale reverses the order", "[oracle]") {
  auto problem = one_row({0.0, 50.0, 7.0, -3.0}, {1.0, 2.0, 3.0, 6.0});
  problem.softmax_scale = 0.0;
  CHECK(std::abs(oracle_forward(problem).output[0] - 3.0) <= 8 * epsilon);
  problem.softmax_scale = -100.0;
  CHECK(oracle_forward(problem).output[0] == 6.0);
}

TEST_CASE("huge logits do not overflow", "[oracle]") {
  auto problem = one_row({1e10, -1e10, 1e10}, {1.0, 5.0, 3.0});
  auto const forward = oracle_forward(problem);
  CHECK(forward.output[0] == 2.0);
  CHECK(forward.lse[0] == 1e10 + std::log(2.0));
  problem.mask = OraclePairs<char>{1, 1, {0, 1, 0}};
  CHECK(oracle_forward(problem).output[0] == 5.0);
}

TEST_CASE("a masked row: output 0, lse -inf or that of the sink logits, gradients exactly 0", "[oracle]") {
  double const poison = std::numeric_limits<double>::quiet_NaN();
  auto problem = one_row({1.0, poison}, {2.0, poison});
  problem.query_length = 2;
  problem.q = {1.0, poison};
  problem.mask = OraclePairs<char>{1, 1, {1, 0, 0, 0}};
  problem.bias = OraclePairs<double>{1, 1, {0.5, poison, poison, poison}};
  std::vector<double> const dout{1.0, poison};

  SECTION("without sink logits") {
    auto const forward = oracle_forward(problem);
    CHECK(forward.output == std::vector<double>{2.0, 0.0});
    CHECK(forward.lse == std::vector<double>{1.5, -infinity});
  }
  SECTION("with sink logits") {
    problem.sinks = OracleSinks{2, {std::log(2.0), std::log(6.0)}};
    auto const forward = oracle_forward(problem);
    CHECK(forward.output[1] == 0.0);
    CHECK(std::abs(forward.lse[1] - std::log(8.0)) <= 4 * epsilon);
    CHECK(std::isfinite(oracle_backward(problem, dout).dsinks[0]));
  }
  auto const gradients = oracle_backward(problem, dout);
  CHECK(std::isfinite(gradients.dq[0]));
  CHECK(gradients.dq[1] == 0.0);
  CHECK(gradients.dk[1] == 0.0);
  CHECK(gradients.dv[1] == 0.0);
  CHECK(std::isfinite(gradients.dbias[0]));
  for (std::size_t pair : {1, 2, 3}) CHECK(gradients.dbias[pair] == 0.0);
}

TEST_CASE("a bias of -inf masks a key, and a row of such biases is empty", "[oracle]") {
  auto problem = one_row({3.0, 1.0}, {1.0, 4.0});
  problem.bias = OraclePairs<double>{1, 1, {-infinity, 0.0}};
  CHECK(oracle_forward(problem).output[0] == 4.0);
  problem.bias->values[1] = -infinity;
  CHECK(oracle_forward(problem).output[0] == 0.0);
  CHECK(oracle_forward(problem).lse[0] == -infinity);
  auto const gradients = oracle_backward(problem, {1.0});
  CHECK(gradients.dq == std::vector<double>{0.0});
  CHECK(gradients.dv == std::vector<double>{0.0, 0.0});
}

TEST_CASE("problems without keys, without queries and without batch items are valid", "[oracle]") {
  OracleProblem problem;
  problem.key_length = 0;
  problem.q = {1.0};
  CHECK(oracle_forward(problem).output == std::vector<double>{0.0});
  CHECK(oracle_backward(problem, {1.0}).dq == std::vector<double>{0.0});
  problem.query_length = 0;
  problem.q.clear();
  CHECK(oracle_forward(problem).lse.empty());
  problem.batch = 0;
  CHECK(oracle_backward(problem, {}).dk.empty());
}

TEST_CASE("the forward pass matches the definition, with every option set", "[oracle]") {
  std::mt19937_64 engine(20240611);
  for (int trial = 0; trial < 20; ++trial) {
    auto problem = small_problem(engine);
    problem.causal = trial % 2 == 0;
    problem.query_offset = trial % 5 - 2;
    if (trial % 3 == 0) problem.window_left = 2;
    problem.logit_softcap = trial % 4 == 1 ? 0.7 : 0.0;
    if (trial % 5 == 1) problem.softmax_scale = -1.3;
    problem.bias = random_bias(engine, problem, trial % 2 == 0 ? 2 : 1, trial % 3 == 0 ? 4 : 1);
    problem.mask = random_mask(engine, problem, trial % 3 == 0 ? 2 : 1, trial % 2 == 0 ? 4 : 1);
    if (trial % 3 == 1) problem.sinks = OracleSinks{2, uniform_values(engine, 8)};
    problem.dropout_probability = trial % 2 == 0 ? 0.3 : 0.0;
    problem.dropout_seed = engine();
    auto const forward = oracle_forward(problem);
    for (std::int64_t b = 0; b < problem.batch; ++b)
      for (std::int64_t h = 0; h < problem.query_heads; ++h)
        for (std::int64_t i = 0; i < problem.query_length; ++i) {
          check_against_definition(problem, forward, b, h, i);
          auto const row = oracle_row(problem, b, h, i);
          std::int64_t const begin = ((b * problem.query_length + i) * problem.query_heads + h) * problem.value_dim;
          for (std::int64_t d = 0; d < problem.value_dim; ++d)
            CHECK(row.output[static_cast<std::size_t>(d)] == forward.output[static_cast<std::size_t>(begin + d)]);
          CHECK(row.lse ==
                forward.lse[static_cast<std::size_t>((b * problem.query_heads + h) * problem.query_length + i)]);
        }
  }
}

TEST_CASE("the error of same-precision dense attention is that of its precision", "[oracle]") {
  std::mt19937_64 engine(5);
  auto const to_bfloat16 = [](double x) { return static_cast<double>(Eigen::bfloat16(static_cast<float>(x))); };
  auto const to_half = [](double x) { return static_cast<double>(Eigen::half(static_cast<float>(x))); };
  auto const to_float = [](double x) { return static_cast<double>(static_cast<float>(x)); };

  auto problem = small_problem(engine);
  problem.causal = true;
  problem.query_offset = 1;
  problem.sinks = OracleSinks{1, uniform_values(engine, 4)};
  problem.bias = random_bias(engine, problem, 1, 1);
  auto dout = output_gradient(engine, problem);
  auto const check = [&](auto const& round_to, double unit) {
    for (auto* values : {&problem.q, &problem.k, &problem.v, &problem.sinks->values, &problem.bias->values, &dout})
      for (double& value : *values) value = round_to(value);
    auto const exact = oracle_forward(problem);
    auto const exact_gradients = oracle_backward(problem, dout);
    auto const plain = dense_same_precision_forward(problem, round_to);
    auto const plain_gradients = dense_same_precision_backward(problem, dout, round_to);
    auto const errs_by_unit = [unit](std::vector<double> const& seen, std::vector<double> const& expected) {
      double const error = distance(seen, expected) / norm(expected);
      CHECK(error <= 8 * unit);
      CHECK(error >= unit / 16);
    };
    errs_by_unit(plain.output, exact.output);
    errs_by_unit(plain_gradients.dq, exact_gradients.dq);
    errs_by_unit(plain_gradients.dk, exact_gradients.dk);
    errs_by_unit(plain_gradients.dv, exact_gradients.dv);
    errs_by_unit(plain_gradients.dbias, exact_gradients.dbias);
    errs_by_unit(plain_gradients.dsinks, exact_gradients.dsinks);
    for (double value : plain.output) CHECK(round_to(value) == value);
    for (double value : plain_gradients.dk) CHECK(round_to(value) == value);
    CHECK(distance(plain.lse, exact.lse) / norm(exact.lse) <=
          4 * static_cast<double>(std::numeric_limits<float>::epsilon()));
  };
  SECTION("bfloat16") { check(to_bfloat16, std::ldexp(1.0, -8)); }
  SECTION("half") { check(to_half, std::ldexp(1.0, -11)); }
  SECTION("float") { check(to_float, std::ldexp(1.0, -24)); }
}
