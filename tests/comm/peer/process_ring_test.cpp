// PeerProcessRing on the CUDA runtime of threads: the suite of all communicators, whose ranks are forked processes.

#include "comm/peer/forked_ranks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include "conformance/communicator_suite.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

/// A runner of the suites.
auto runner(int ranks_a_gpu, std::chrono::milliseconds timeout = 20s) {
  return [=](int ranks, auto const& function) {
    CaseOutcome outcome;
    auto const ends = run_forked_ranks({ranks, ranks_a_gpu, timeout}, function);
    for (std::size_t r = 0; r < ends.size(); ++r) {
      outcome.ranks[static_cast<Rank>(r)] = ends[r].outcome;
      if (ends[r].outcome.kind != RankOutcome::returned) outcome.escaped = ends[r].outcome.kind;
      CHECK(ends[r].signal == 0);
    }
    return outcome;
  };
}

}  // namespace

TEST_CASE("PeerProcessRing is a communicator, with a GPU for each rank", "[peer][processes]") {
  communicator_suite(runner(1), {1, 2, 3, 4});
}

TEST_CASE("PeerProcessRing is a communicator, with two ranks on each GPU", "[peer][processes]") {
  communicator_suite(runner(2), {3, 4});
}

TEST_CASE("PeerProcessRing keeps its deadline", "[peer][processes]") {
  constexpr std::chrono::milliseconds deadline(500);
  communicator_deadline_suite(runner(1, deadline), deadline, {3, 4});
}

#endif
