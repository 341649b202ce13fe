// Random problems with 16-bit operands, and with float operands and sums in double.

#include <cstdint>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/random_ring_problem.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;

TEMPLATE_TEST_CASE("16-bit operands: the error of the ring is at most twice that of dense attention", "[sweep]",
                   Eigen::half, Eigen::bfloat16) {
  ThreeWayJudge<TestType> three_way;
  for (std::uint64_t seed = 6'000'000; seed < 6'000'150; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<TestType>(problem);
    CHECK(three_way.complaint(problem, assemble(problem, solve_by_rank<TestType>(problem))) == "");
  }
  CHECK(three_way.complaint_about_all() == "");
}

TEST_CASE("float operands with sums in double: results are rounded once", "[sweep]") {
  // Half a unit in the last place of a float for each value written.
  constexpr double one_rounding = 1.0 / (1 << 24);
  for (std::uint64_t seed = 9'000'000; seed < 9'000'150; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<float>(problem);
    INFO(problem.text);
    RingResult const seen = assemble(problem, solve_with_sums_in_double(problem));
    CHECK(judge(problem, seen, float_bounds).complaint == "");
    OracleForward const exact = oracle_forward(rounded_to_wire(problem).dense);
    std::vector<double> finite_lse = exact.lse;
    std::erase_if(finite_lse, [](double value) { return !std::isfinite(value); });
    CHECK(distance(seen.output, exact.output) <= 1.001 * one_rounding * norm(exact.output));
    CHECK(distance(seen.lse, exact.lse) <= 1.001 * one_rounding * norm(finite_lse));
  }
}

TEST_CASE("float operands with sums in double give the output of double operands, rounded") {
  RingProblem problem = random_ring_problem(9'500'000);
  round_operands<float>(problem);
  RingResult const in_double = assemble(problem, solve_by_rank<double>(problem));
  RingResult const narrowed = assemble(problem, solve_with_sums_in_double(problem));
  RoundTo<float> const round;
  for (std::size_t i = 0; i < in_double.output.size(); ++i) CHECK(narrowed.output[i] == round(in_double.output[i]));
}
