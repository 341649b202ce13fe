#pragma once
// Sweep of random problems with seeds [first_seed, first_seed + problems), forward and backward on a simulated ring,
// against the oracle. make(seed): the problem of a seed.

#include <annulus/annulus.hpp>
#include <cstdint>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/random_ring_problem.hpp"

namespace annulus_test {

template <class T, class Placement, class Backend = annulus::ReferenceBackend>
void sweep(std::uint64_t first_seed, int problems, Bounds bounds,
           RingProblem (&make)(std::uint64_t) = random_ring_problem) {
  int within_result = 0;
  double worst = 0;
  if (asked_schedule()) problems /= 10;
  for (int i = 0; i < problems; ++i) {
    RingProblem problem = make(first_seed + static_cast<std::uint64_t>(i));
    round_operands<T>(problem);
    INFO(problem.text);
    annulus::ZeroCopy const zero_copy = i % 2 == 0 ? annulus::ZeroCopy::automatic : annulus::ZeroCopy::never;
    auto const results = results_of_ranks<T, Placement>(problem, Backend{}, {.zero_copy = zero_copy});
    Judgement const verdict = judge(problem, assemble(problem, results), bounds);
    CHECK(verdict.complaint == "");
    within_result += verdict.by_result;
    worst = std::max(worst, verdict.worst);
  }
  // The bound by terms is for small differences of large terms; if it were needed often, it would hide errors. A tenth
  // of the problems is too few to tell.
  if (!asked_schedule()) CHECK(within_result >= problems * 95 / 100);
  INFO("largest error relative to the norm of a result: " << worst);
  CHECK(worst > 0);
}

}  // namespace annulus_test
