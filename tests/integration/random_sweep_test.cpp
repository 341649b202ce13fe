// Thousands of random problems over mask x sharding x ranks x heads x operands, forward and backward, against the oracle.

#include <annulus/annulus.hpp>
#include <cstdint>
#include <string>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/random_ring_problem.hpp"

using namespace annulus_test;

namespace {

template <class T, class Placement, class Backend = annulus::ReferenceBackend>
void sweep(std::uint64_t first_seed, int problems, Bounds bounds) {
  int within_result = 0;
  double worst = 0;
  for (int i = 0; i < problems; ++i) {
    RingProblem problem = random_ring_problem(first_seed + static_cast<std::uint64_t>(i));
    round_operands<T>(problem);
    INFO(problem.text);
    auto const results = annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
      Backend backend;
      return run_rank<T, Placement>(problem, ring, backend);
    });
    Judgement const verdict = judge(problem, assemble(problem, results), bounds);
    CHECK(verdict.complaint == "");
    within_result += verdict.by_result;
    worst = std::max(worst, verdict.worst);
  }
  // The bound by terms is for small differences of large terms; were it needed often, it would hide something.
  CHECK(within_result >= problems * 95 / 100);
  INFO("largest error relative to the norm of a result: " << worst);
  CHECK(worst > 0);
}

}  // namespace

TEST_CASE("double: random problems agree with the oracle to 1e-12", "[sweep]") {
  sweep<double, HostPlacement>(1'000'000, 600, double_bounds);
  sweep<double, TransposedPlacement>(2'000'000, 600, double_bounds);
}

TEST_CASE("float: random problems agree with the oracle to 2e-6", "[sweep]") {
  sweep<float, HostPlacement>(3'000'000, 600, float_bounds);
  sweep<float, TransposedPlacement>(4'000'000, 600, float_bounds);
}

TEST_CASE("float operands with sums in double lose nothing but the rounding of the results", "[sweep]") {
  // lse and results are rounded to float once; gradients see the rounded lse and output.
  sweep<float, HostPlacement, annulus::DoubleReferenceBackend>(5'000'000, 100, float_bounds);
}
