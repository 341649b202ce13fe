// Random sweeps over the schedules in which ranks form groups, forward and backward, against the oracle: masks x
// shardings x ranks x group sizes x heads x operands.

#include "integration/random_sweep.hpp"
#include "support/grouped_problem.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Schedule;

TEST_CASE("double: random problems in groups agree with the oracle to 1e-12", "[slow][sweep][schedules]") {
  sweep<double, HostPlacement>(7'000'000, 700, double_bounds, random_grouped_problem);
  sweep<double, TransposedPlacement>(8'000'000, 300, double_bounds, random_grouped_problem);
}

TEST_CASE("float: random problems in groups agree with the oracle to 2e-6", "[sweep][schedules]") {
  sweep<float, HostPlacement>(9'000'000, 500, float_bounds, random_grouped_problem);
}

TEST_CASE("ranks that share heads ask the predicate about the caller's heads", "[schedules]") {
  for (Schedule schedule : {Schedule::two_levels, Schedule::tiles, Schedule::all_gather}) {
    RingProblem problem =
        small_ring_problem({.query_heads = 8, .kv_heads = 4, .query_length = 24}, 4, annulus::Zigzag{});
    problem.options.schedule = schedule;
    auto const sees = [](auto, auto head, auto query, auto key) { return (key + 3 * head) % 5 <= query % 4; };
    problem.dense.predicate = sees;
    settle(problem);
    auto const results = results_of_ranks<double>(problem, annulus::ReferenceBackend{}, {}, sees);
    Judgement const verdict = judge(problem, assemble(problem, results), double_bounds);
    CHECK(verdict.complaint == "");
  }
}
