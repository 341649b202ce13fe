// The oracle's gradients against central finite differences of its own forward pass, feature by feature,
// and single rows of the gradients against the complete gradients.

#include "support/catch.hpp"
#include "support/larger_error.hpp"
#include "support/oracle.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "oracle/problem_builder.hpp"

using namespace annulus_test;

namespace {

struct Feature {
  std::string name;
  std::function<void(OracleProblem&, std::mt19937_64&)> apply;
};

std::vector<Feature> features() {
  return {
      {"none", [](OracleProblem&, std::mt19937_64&) {}},
      {"causal", [](OracleProblem& p, std::mt19937_64&) { p.causal = true; }},
      {"causal with rows that see nothing",
       [](OracleProblem& p, std::mt19937_64&) { p.causal = true, p.query_offset = -2; }},
      {"window", [](OracleProblem& p, std::mt19937_64&) { p.window_left = 1, p.window_right = 2; }},
      {"window with sink tokens",
       [](OracleProblem& p, std::mt19937_64&) { p.causal = true, p.window_left = 0, p.sink_tokens = 2; }},
      {"chunk", [](OracleProblem& p, std::mt19937_64&) { p.chunk = 2, p.query_offset = -1; }},
      {"scale 1.7", [](OracleProblem& p, std::mt19937_64&) { p.softmax_scale = 1.7; }},
      {"scale 0", [](OracleProblem& p, std::mt19937_64&) { p.softmax_scale = 0.0; }},
      {"scale -0.9", [](OracleProblem& p, std::mt19937_64&) { p.softmax_scale = -0.9; }},
      {"soft cap", [](OracleProblem& p, std::mt19937_64&) { p.logit_softcap = 0.8; }},
      {"bias [b,h]", [](OracleProblem& p, std::mt19937_64& engine) { p.bias = random_bias(engine, p, 2, 4); }},
      {"bias [1,h]", [](OracleProblem& p, std::mt19937_64& engine) { p.bias = random_bias(engine, p, 1, 4); }},
      {"bias [b,1]", [](OracleProblem& p, std::mt19937_64& engine) { p.bias = random_bias(engine, p, 2, 1); }},
      {"bias [1,1]", [](OracleProblem& p, std::mt19937_64& engine) { p.bias = random_bias(engine, p, 1, 1); }},
      {"mask", [](OracleProblem& p, std::mt19937_64& engine) { p.mask = random_mask(engine, p, 2, 4); }},
      {"segments",
       [](OracleProblem& p, std::mt19937_64&) {
         p.query_documents = {1, 1, 2, 0, 3, 2, 2, 2, 5, -1};
         p.key_documents = {1, 2, 2, 1, 0, 4, 2, 2, 5, 5, 2, -1};
       }},
      {"one sink",
       [](OracleProblem& p, std::mt19937_64& engine) {
         p.sinks = OracleSinks{1, uniform_values(engine, 4)};
       }},
      {"three sinks and rows that see nothing",
       [](OracleProblem& p, std::mt19937_64& engine) {
         p.sinks = OracleSinks{3, uniform_values(engine, 12)};
         p.causal = true;
         p.query_offset = -2;
       }},
      {"dropout",
       [](OracleProblem& p, std::mt19937_64& engine) { p.dropout_probability = 0.4, p.dropout_seed = engine(); }},
      {"predicate",
       [](OracleProblem& p, std::mt19937_64&) {
         p.predicate = [](auto b, auto h, auto query, auto key) { return (b + 2 * h + query + 3 * key) % 4 != 0; };
       }},
      {"everything",
       [](OracleProblem& p, std::mt19937_64& engine) {
         p.causal = true;
         p.query_offset = 2;
         p.window_left = 4;
         p.softmax_scale = 1.1;
         p.logit_softcap = 1.5;
         p.bias = random_bias(engine, p, 1, 4);
         p.mask = random_mask(engine, p, 2, 1);
         p.sinks = OracleSinks{2, uniform_values(engine, 8)};
         p.dropout_probability = 0.25;
         p.dropout_seed = engine();
       }},
  };
}

double loss(OracleProblem const& problem, std::vector<double> const& dout) {
  auto const forward = oracle_forward(problem);
  double sum = 0;
  for (std::size_t i = 0; i < dout.size(); ++i) sum += dout[i] * forward.output[i];
  return sum;
}

/// Largest difference between `gradient` and the five-point derivative of the loss along each value of `operand`,
/// an operand of `problem`.
double worst_difference(OracleProblem& problem, std::vector<double>& operand, std::vector<double> const& gradient,
                        std::vector<double> const& dout) {
  REQUIRE(operand.size() == gradient.size());
  double const step = std::ldexp(1.0, -9);
  double worst = 0;
  for (std::size_t i = 0; i < operand.size(); ++i) {
    double const value = operand[i];
    auto const at = [&](double shift) {
      operand[i] = value + shift;
      return loss(problem, dout);
    };
    double const derivative = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
    operand[i] = value;
    worst = larger_error(worst, std::abs(derivative - gradient[i]));
  }
  return worst;
}

}  // namespace

TEST_CASE("gradients agree with finite differences", "[oracle]") {
  std::mt19937_64 engine(77);
  for (auto const& feature : features()) {
    auto problem = small_problem(engine);
    feature.apply(problem, engine);
    auto const dout = output_gradient(engine, problem);
    auto const gradients = oracle_backward(problem, dout);
    CAPTURE(feature.name);
    REQUIRE(std::abs(loss(problem, dout)) < 10);
    // The stencil truncates at step^4 / 30 = 5e-13 times a fifth derivative below 1e3 here, and rounds at about
    // 2 * 1e-16 * |loss| / step = 1e-12 with a loss below 10. A missing term shows at 1e-2.
    double const tolerance = 1e-9;
    CHECK(worst_difference(problem, problem.q, gradients.dq, dout) <= tolerance);
    CHECK(worst_difference(problem, problem.k, gradients.dk, dout) <= tolerance);
    CHECK(worst_difference(problem, problem.v, gradients.dv, dout) <= tolerance);
    CHECK(gradients.dbias.empty() != problem.bias.has_value());
    CHECK(gradients.dsinks.empty() != problem.sinks.has_value());
    if (problem.bias) CHECK(worst_difference(problem, problem.bias->values, gradients.dbias, dout) <= tolerance);
    if (problem.sinks) CHECK(worst_difference(problem, problem.sinks->values, gradients.dsinks, dout) <= tolerance);
  }
}

TEST_CASE("each feature changes the gradients", "[oracle]") {
  std::vector<double> plain;
  for (auto const& feature : features()) {
    std::mt19937_64 engine(78);
    auto problem = small_problem(engine);
    auto const dout = output_gradient(engine, problem);
    feature.apply(problem, engine);
    auto const dv = oracle_backward(problem, dout).dv;
    CAPTURE(feature.name);
    if (feature.name == "none")
      plain = dv;
    else
      CHECK(dv != plain);
  }
}

TEST_CASE("single rows of the gradients equal those of the complete gradients", "[oracle]") {
  std::mt19937_64 engine(79);
  for (auto const& feature : features()) {
    auto problem = small_problem(engine);
    feature.apply(problem, engine);
    auto const dout = output_gradient(engine, problem);
    auto const gradients = oracle_backward(problem, dout);
    OracleGradientRows rows(problem, dout);
    CAPTURE(feature.name);
    // The same terms in another order: sums of at most 20 terms below 4.
    double const tolerance = 20 * 4 * std::numeric_limits<double>::epsilon();
    auto const same = [tolerance](std::vector<double> const& row, std::vector<double> const& whole,
                                  std::int64_t begin) {
      bool equal = true;
      for (std::size_t i = 0; i < row.size(); ++i)
        equal = equal && std::abs(row[i] - whole[static_cast<std::size_t>(begin) + i]) <= tolerance;
      return equal;
    };
    for (std::int64_t b = 0; b < problem.batch; ++b) {
      for (std::int64_t h = 0; h < problem.query_heads; ++h)
        for (std::int64_t i = 0; i < problem.query_length; ++i)
          CHECK(same(rows.dq(b, h, i), gradients.dq,
                     ((b * problem.query_length + i) * problem.query_heads + h) * problem.head_dim));
      for (std::int64_t h = 0; h < problem.kv_heads; ++h)
        for (std::int64_t j = 0; j < problem.key_length; ++j) {
          auto const [dk, dv] = rows.dk_dv(b, h, j);
          CHECK(same(dk, gradients.dk, ((b * problem.key_length + j) * problem.kv_heads + h) * problem.head_dim));
          CHECK(same(dv, gradients.dv, ((b * problem.key_length + j) * problem.kv_heads + h) * problem.value_dim));
        }
    }
  }
}
