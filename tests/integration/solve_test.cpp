// Solver that the other tests of this folder share, and a test that the judge rejects wrong results.

#include "integration/solve.hpp"

#include <annulus/annulus.hpp>

#include "support/catch.hpp"

namespace annulus_test {

namespace {

template <class T, class Backend>
RingResult solve_rank(RingProblem const& problem, annulus::SimulatedRing& ring, Backend& backend) {
  return problem.dense.predicate ? run_rank<T, HostPlacement>(problem, ring, backend, problem.dense.predicate)
                                 : run_rank<T, HostPlacement>(problem, ring, backend);
}

}  // namespace

template <class T>
std::vector<RingResult> solve_by_rank(RingProblem const& problem) {
  return annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    return with_asked_backend([&](auto& backend) { return solve_rank<T>(problem, ring, backend); });
  });
}

template std::vector<RingResult> solve_by_rank<double>(RingProblem const&);
template std::vector<RingResult> solve_by_rank<float>(RingProblem const&);
template std::vector<RingResult> solve_by_rank<Eigen::half>(RingProblem const&);
template std::vector<RingResult> solve_by_rank<Eigen::bfloat16>(RingProblem const&);

std::vector<RingResult> solve_with_sums_in_double(RingProblem const& problem) {
  return annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    annulus::DoubleReferenceBackend backend;
    return solve_rank<float>(problem, ring, backend);
  });
}

TEST_CASE("the judge rejects a small change of any result") {
  RingProblem problem = small_ring_problem({}, 3, annulus::Zigzag{});
  give_bias(problem, 1, 2);
  give_sinks(problem, 1);
  problem.dense.causal = true;
  RingResult const right = solve<float>(problem);
  REQUIRE(judge(problem, right, float_bounds).complaint == "");
  for (auto member : {&RingResult::output, &RingResult::lse, &RingResult::dq, &RingResult::dk, &RingResult::dv,
                      &RingResult::dbias, &RingResult::dsinks}) {
    RingResult wrong = right;
    for (double& value : wrong.*member) value *= 1 + 1e-5;
    CHECK(judge(problem, wrong, float_bounds).complaint != "");
    wrong = right;
    (wrong.*member).back() = std::numeric_limits<double>::quiet_NaN();
    CHECK(judge(problem, wrong, float_bounds).complaint != "");
  }
}

}  // namespace annulus_test
