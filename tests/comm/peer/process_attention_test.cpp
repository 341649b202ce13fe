// Ring attention on a ring of GPUs whose ranks are processes, with work that is done by host functions: the bits of a
// simulated ring. On the CUDA runtime of threads.

#include "comm/peer/forked_ranks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/host_function_backend.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::Rotation;
using annulus::Schedule;

namespace {

RingProblem problem_of(int ranks, Rotation rotation, Schedule schedule) {
  RingProblem problem =
      small_ring_problem({.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 4 * ranks + 1, .head_dim = 3},
                         ranks, annulus::Contiguous{}, rotation);
  problem.options.schedule = schedule;
  settle(problem);
  problem.options.checked = false;
  round_operands<float>(problem);
  return problem;
}

}  // namespace

TEST_CASE("a pass of processes on GPUs has the bits of a pass on a simulated ring", "[peer][processes]") {
  for (int const ranks : {1, 2, 3, 4})
    for (Rotation const rotation : {Rotation::keys, Rotation::queries})
      for (Schedule const schedule : {Schedule::ring, Schedule::both_directions}) {
        RingProblem const problem = problem_of(ranks, rotation, schedule);
        INFO(problem.text << ", " << name_of(schedule));
        annulus::SimulatedRingOptions const messages{.zero_copy = annulus::ZeroCopy::never};
        auto const expected = results_of_ranks<float>(problem, annulus::ReferenceBackend{}, messages);
        auto const ends = run_forked_ranks({ranks, 2}, [&](PeerProcessRing& ring) -> std::string {
          HostFunctionBackend<> backend(-1);
          auto const result =
              run_rank<float, SpacePlacement<ManagedPlace>>(problem, ring, backend, annulus::EveryPair{}, 2);
          return different_results(result, expected[static_cast<std::size_t>(ring.rank())]);
        });
        for (ForkedEnd const& end : ends) {
          CHECK(end.outcome.kind == RankOutcome::returned);
          CHECK(end.outcome.text == "");
        }
      }
}

#endif
