// Gradients of the ring against finite differences of its own output, option by option, without the oracle.

#include <cmath>
#include <functional>
#include <numeric>

#include "integration/solve.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::Rotation;

namespace {

RingProblem problem_with_grouped_heads(Rotation rotation) {
  return small_ring_problem({.query_length = 5, .key_length = 6, .head_dim = 2, .value_dim = 1}, 3, annulus::Zigzag{},
                            rotation);
}

/// Scalar whose gradients the backward pass returns: the dot product of output and dout.
double loss(RingProblem const& problem) {
  std::vector<double> const output = assemble(problem, solve_by_rank<double>(problem)).output;
  return std::inner_product(output.begin(), output.end(), problem.dout.begin(), 0.0);
}

/// d loss / d value for each value, by four-point central differences. With logits of order 1 the neglected term
/// step^4 / 30 times the fifth derivative is of order 1e-11 times that derivative; rounding adds 1e-16 / step.
std::vector<double> differences(RingProblem& problem, std::vector<double>& values) {
  constexpr double step = 1.0 / 256;
  std::vector<double> gradient;
  for (double& value : values) {
    double const here = value;
    auto const at = [&](double shift) {
      value = here + shift;
      return loss(problem);
    };
    double const near = at(step) - at(-step), far = at(2 * step) - at(-2 * step);
    value = here;
    gradient.push_back((8 * near - far) / (12 * step));
  }
  return gradient;
}

/// Compares all gradients of the problem, one by one.
void check_gradients(RingProblem problem) {
  RingResult const result = solve<double>(problem);
  auto const check = [&](char const* name, std::vector<double>& values, std::vector<double> const& gradient) {
    std::vector<double> const expected = differences(problem, values);
    INFO(problem.text << ": gradient of " << name);
    CHECK(distance(gradient, expected) <= 1e-9 * norm(expected) + 1e-11);
  };
  check("q", problem.dense.q, result.dq);
  check("k", problem.dense.k, result.dk);
  check("v", problem.dense.v, result.dv);
  if (problem.dense.bias) check("bias", problem.dense.bias->values, result.dbias);
  if (problem.dense.sinks) check("sink logits", problem.dense.sinks->values, result.dsinks);
}

using SetOption = std::function<void(RingProblem&)>;

void check_gradients_of_both_rotations(SetOption const& set_option) {
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    RingProblem problem = problem_with_grouped_heads(rotation);
    set_option(problem);
    if (rotation == Rotation::queries && (problem.dense.bias || problem.dense.mask)) continue;
    check_gradients(problem);
  }
}

}  // namespace

TEST_CASE("gradients equal finite differences of the output, under every option", "[slow][finite_difference]") {
  std::pair<char const*, SetOption> const options[] = {
      {"no option", [](RingProblem&) {}},
      {"causal", [](RingProblem& p) { p.dense.causal = true; }},
      {"window", [](RingProblem& p) { p.dense.window_left = 2, p.dense.window_right = 1; }},
      {"window and sink tokens",
       [](RingProblem& p) { p.dense.window_left = 1, p.dense.window_right = 0, p.dense.sink_tokens = 2; }},
      {"chunk", [](RingProblem& p) { p.dense.chunk = 3; }},
      {"query offset", [](RingProblem& p) { p.dense.causal = true, p.dense.query_offset = -2; }},
      {"soft cap", [](RingProblem& p) { p.dense.logit_softcap = 0.7; }},
      {"dropout", [](RingProblem& p) { p.dense.dropout_probability = 0.4, p.dense.dropout_seed = 11; }},
      {"documents",
       [](RingProblem& p) {
         p.dense.query_documents = {1, 2, 2, 0, 3}, p.dense.key_documents = {1, 1, 2, -1, 2, 3};
       }},
      {"predicate",
       [](RingProblem& p) {
         p.dense.predicate = [](auto, auto head, auto query, auto key) { return (query * 3 + key + head) % 4 != 0; };
       }},
      {"sink logits", [](RingProblem& p) { give_sinks(p, 2); }},
      {"bias of each pair", [](RingProblem& p) { give_bias(p, 1, 2); }},
      {"bias shared by all heads, under a soft cap",
       [](RingProblem& p) { give_bias(p, 1, 1), p.dense.logit_softcap = 0.9; }},
      {"boolean mask", [](RingProblem& p) { give_mask(p, 1, 2); }},
  };
  for (auto const& [name, set_option] : options) {
    INFO(name);
    check_gradients_of_both_rotations(set_option);
  }
}

TEST_CASE("gradients equal finite differences of the output, with all options together", "[finite_difference]") {
  RingProblem problem = small_ring_problem({.batch = 2, .query_heads = 2, .query_length = 7, .head_dim = 3}, 3,
                                           annulus::Striped{2}, Rotation::keys);
  OracleProblem& d = problem.dense;
  d.causal = true;
  d.window_left = 4;
  d.sink_tokens = 1;
  d.softmax_scale = 0.8;
  d.logit_softcap = 1.5;
  d.dropout_probability = 0.3;
  give_documents(problem, documents_of_lengths(2, {3, 4}));
  give_bias(problem, 1, 2);
  give_mask(problem, 2, 1);
  give_sinks(problem, 2);
  check_gradients(problem);
}

TEST_CASE("forward and backward pass use the same scale", "[trap][C6]") {
  for (double scale : {1.0, 0.2, 0.0, -0.7})
    check_gradients_of_both_rotations([scale](RingProblem& problem) {
      problem.dense.softmax_scale = scale;
      problem.dense.causal = true;
      CHECK(complaints(problem) == "");
    });
}
