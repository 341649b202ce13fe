// Observers over MPI: intervals nest and sum as the plan says.

#include <mpi.h>

#include <annulus/annulus.hpp>
#include <string>
#include <vector>

#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"
#include "support/interval_checks.hpp"
#include "support/random_ring_problem.hpp"

using namespace annulus_test;

TEST_CASE("intervals over MPI nest, sum to the plan, and do not change results", "[mpi][observer]") {
  for (auto const zero_copy : {annulus::ZeroCopy::always, annulus::ZeroCopy::never}) {
    annulus::MpiRingOptions options = options_of_tests();
    options.zero_copy = zero_copy;
    annulus::MpiRing ring(MPI_COMM_WORLD, options);
    int problems = 0;
    for (std::uint64_t seed = 930'000; problems < 6; ++seed) {
      RingProblem problem = random_ring_problem(seed);
      if (problem.ranks != world_size()) continue;
      ++problems;
      round_operands<float>(problem);
      INFO(problem.text);
      std::vector<annulus::Interval> seen;
      std::string const wrong = observed_run<float>(problem, ring, seen);
      CHECK(wrong.empty());
    }
  }
}
