// Observers over MPI: intervals nest and sum as the plan says, and an observer that throws ends the call on all ranks.

#include <mpi.h>

#include <annulus/annulus.hpp>
#include <string>
#include <vector>

#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"
#include "support/interval_checks.hpp"
#include "support/random_ring_problem.hpp"
#include "support/small_ring_problem.hpp"

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

TEST_CASE("an observer over MPI that throws on one rank ends the call on all", "[mpi][observer]") {
  using annulus::IntervalKind;
  for (IntervalKind kind : {IntervalKind::agreement, IntervalKind::compute, IntervalKind::call}) {
    annulus::MpiRing ring(MPI_COMM_WORLD, options_of_tests());
    RingProblem problem = small_ring_problem({.query_length = 4 * world_size(), .head_dim = 8}, world_size());
    problem.options.checked = true;
    settle(problem);
    bool const observed = ring.rank() == ring.size() - 1;
    if (observed)
      problem.options.observer = [&](annulus::Interval const& interval) {
        if (interval.kind == kind) throw annulus::Error("the observer is full");
      };
    annulus::ReferenceBackend backend;
    std::string message = "nothing was thrown";
    try {
      run_rank<float>(problem, ring, backend);
    } catch (annulus::CommunicationError const& error) {
      message = observed ? "a communication error" : error.what();
    } catch (annulus::Error const& error) {
      message = observed ? error.what() : "an error of this rank";
    }
    INFO(name_of(kind));
    CHECK_THAT(message, Catch::Matchers::ContainsSubstring("the observer is full"));
  }
}
