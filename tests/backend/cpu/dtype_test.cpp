// 16-bit operands on the CPU backend, with the instructions that the target has for them.

#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <cstdint>

#include "support/catch.hpp"
#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;

namespace {

template <class T, class Placement>
RingResult solve_on_cpu(RingProblem const& problem) {
  return whole_result<T, Placement>(problem, annulus::CpuBackend{});
}

}  // namespace

TEMPLATE_TEST_CASE("CPU, 16-bit operands: error at most twice that of dense attention in that type", "[sweep][cpu]",
                   Eigen::half, Eigen::bfloat16) {
  ThreeWayJudge<TestType> three_way;
  for (std::uint64_t seed = 6'000'000; seed < 6'000'150; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<TestType>(problem);
    CHECK(three_way.complaint(problem, solve_on_cpu<TestType, HostPlacement>(problem)) == "");
    CHECK(three_way.complaint(problem, solve_on_cpu<TestType, TransposedPlacement>(problem)) == "");
  }
  CHECK(three_way.complaint_about_all() == "");
}

TEMPLATE_TEST_CASE("CPU, 16-bit operands: odd lengths, dimensions and windows", "[slow][cpu]", Eigen::half,
                   Eigen::bfloat16) {
  ThreeWayJudge<TestType> three_way;
  for (std::int64_t length : {1, 31, 33, 129, 255, 300})
    for (std::int64_t dim : {1, 17, 31, 64, 80})
      for (int left : {-1, 0, 40}) {
        RingProblem problem = small_ring_problem({.query_length = length, .head_dim = dim, .value_dim = 97 - dim}, 1);
        problem.dense.causal = left >= 0;
        problem.dense.window_left = left;
        settle(problem);
        round_operands<TestType>(problem);
        CHECK(three_way.complaint(problem, solve_on_cpu<TestType, HostPlacement>(problem)) == "");
      }
  CHECK(three_way.complaint_about_all() == "");
}
