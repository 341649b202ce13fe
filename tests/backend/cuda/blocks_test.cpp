// Steps of several blocks of queries and keys, with heads of every size that kernels tell apart: the suite's steps fit in
// one block.

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backend/cuda/implementation.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;

namespace {

/// Heads of one chunk and of several, for tensor cores and not, of whole pieces of 16 bytes and not.
constexpr std::array<std::array<std::int64_t, 2>, 8> dims{
    {{64, 64}, {128, 128}, {80, 48}, {7, 3}, {40, 136}, {256, 192}, {33, 260}, {320, 512}}};

RingProblem problem_of_blocks(std::array<std::int64_t, 2> const& of_head, std::int64_t queries, std::int64_t keys) {
  return small_ring_problem({.query_heads = 2,
                             .kv_heads = 1,
                             .query_length = queries,
                             .key_length = keys,
                             .head_dim = of_head[0],
                             .value_dim = of_head[1]},
                            1);
}

/// The complaint about the results of a problem, solved in one step of these operands.
template <class T>
std::string complaint(RingProblem problem, std::size_t choice, ThreeWayJudge<T>* three_way = nullptr) {
  settle(problem);
  problem.text += annulus::detail::message_of(", heads of ", problem.dense.head_dim, " and ", problem.dense.value_dim,
                                              ", choice ", choice);
  round_operands<T>(problem);
  StepSolver<T, CudaImplementation> solver({}, problem, backend_cases::choice_number(choice));
  RingResult const result = assemble(problem, solver.solve());
  if (three_way) return three_way->complaint(problem, result);
  return judge(problem, result, backend_cases::bounds_of<T>).complaint;
}

/// Calls function(problem, choice) for masks that leave blocks full, cut them, and skip some.
template <class Function>
void for_each_problem(Function&& function) {
  std::size_t choice = 0;
  for (auto const& of_head : dims) {
    // The last block is whole, or of one row.
    function(problem_of_blocks(of_head, 128, 192), choice++);
    RingProblem causal = problem_of_blocks(of_head, 129, 129);
    causal.dense.causal = true;
    function(causal, choice++);
    RingProblem window = problem_of_blocks(of_head, 140, 200);
    window.dense.window_left = 30;
    window.dense.window_right = 10;
    window.dense.query_offset = 40;
    function(window, choice++);
  }
}

/// A problem of two documents with padding between and after them, whose rows hold `padding`.
RingProblem padded_problem(double padding) {
  RingProblem problem = problem_of_blocks({64, 64}, 150, 150);
  std::vector<int> ids(150, 0);
  std::fill_n(ids.begin(), 40, 1);
  std::fill_n(ids.begin() + 70, 60, 2);
  give_documents(problem, ids);
  auto const fill = [&](std::vector<double>& values) {
    std::size_t const row = values.size() / 150;
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (ids[i] == 0) std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(i * row), row, padding);
  };
  for (auto* values : {&problem.dense.q, &problem.dense.k, &problem.dense.v, &problem.dout}) fill(*values);
  settle(problem);
  return problem;
}

template <class T>
RingResult result_of(RingProblem problem) {
  round_operands<T>(problem);
  StepSolver<T, CudaImplementation> solver({}, problem, backend_cases::choice_number(0));
  return assemble(problem, solver.solve());
}

/// The complaint about a result of a problem whose hidden rows are not finite, by the problem with 0 in their place.
template <class T>
std::string padding_complaint(RingResult const& seen, RingProblem problem) {
  round_operands<T>(problem);
  if (sizeof(T) == 2) return ThreeWayJudge<T>().complaint(problem, seen);
  return judge(problem, seen, backend_cases::bounds_of<T>).complaint;
}

constexpr double not_finite[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};

}  // namespace

TEMPLATE_TEST_CASE("CudaBackend: steps of several blocks", "[backend][cuda][blocks]", float, double) {
  for_each_problem(
      [](RingProblem const& problem, std::size_t choice) { CHECK(complaint<TestType>(problem, choice) == ""); });
}

TEMPLATE_TEST_CASE("CudaBackend, 16-bit operands: steps of several blocks", "[backend][cuda][blocks]", Eigen::half,
                   Eigen::bfloat16) {
  ThreeWayJudge<TestType> three_way;
  for_each_problem([&](RingProblem const& problem, std::size_t choice) {
    CHECK(complaint<TestType>(problem, choice, &three_way) == "");
  });
  CHECK(three_way.complaint_about_all() == "");
}

TEMPLATE_TEST_CASE("CudaBackend: options with several blocks", "[backend][cuda][blocks]", float, Eigen::bfloat16) {
  RingProblem problem = problem_of_blocks({64, 64}, 130, 130);
  problem.dense.causal = true;
  SECTION("dropout") { problem.dense.dropout_probability = 0.3; }
  SECTION("soft cap") { problem.dense.logit_softcap = 2; }
  SECTION("a bias that heads share") { give_bias(problem, 1, 1); }
  SECTION("a bias of each head") { give_bias(problem, 1, 2); }
  SECTION("boolean mask") { give_mask(problem, 1, 2); }
  SECTION("sink tokens and sink logits") {
    problem.dense.window_left = 20;
    problem.dense.sink_tokens = 3;
    give_sinks(problem, 2);
  }
  ThreeWayJudge<TestType> three_way;
  CHECK(complaint<TestType>(problem, 0, sizeof(TestType) == 2 ? &three_way : nullptr) == "");
}

TEMPLATE_TEST_CASE("CudaBackend: hidden rows may hold anything", "[backend][cuda][blocks]", float, Eigen::half,
                   Eigen::bfloat16) {
  for (double const padding : not_finite)
    CHECK(padding_complaint<TestType>(result_of<TestType>(padded_problem(padding)), padded_problem(0)) == "");
}

TEMPLATE_TEST_CASE("CudaBackend: a key that is not finite reaches the rows that see it alone",
                   "[backend][cuda][blocks]", float, Eigen::half, Eigen::bfloat16) {
  constexpr std::size_t key = 100, query_row = 2 * 64, key_row = 64;
  // Values and gradients are below 4; weights and results are rounded.
  double const rounding = 4 * static_cast<double>(Eigen::NumTraits<TestType>::epsilon());
  RingProblem problem = problem_of_blocks({64, 64}, 130, 130);
  problem.dense.causal = true;
  settle(problem);
  RingResult const expected = result_of<TestType>(problem);
  for (auto const operand : {&OracleProblem::k, &OracleProblem::v})
    for (double const value : not_finite) {
      RingProblem bad = problem;
      std::fill_n((bad.dense.*operand).begin() + key * key_row, key_row, value);
      RingResult const seen = result_of<TestType>(bad);
      for (std::size_t i = 0; i < 130 * query_row; ++i) {
        INFO("row " << i / query_row << ", element " << i % query_row);
        bool const sees = i / query_row >= key;
        CHECK(std::isfinite(seen.output[i]) == !sees);
        CHECK(std::isfinite(seen.dq[i]) == !sees);
        if (sees) continue;
        CHECK(std::abs(seen.output[i] - expected.output[i]) <= rounding);
        CHECK(std::abs(seen.dq[i] - expected.dq[i]) <= rounding);
      }
    }
}
