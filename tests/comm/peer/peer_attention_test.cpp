// Ring attention on a ring of GPUs whose work is done by host functions: the bits of a simulated ring in every
// schedule, and failures in the middle of a pass.

#include <vector>

#include "annulus/comm/peer_ring.hpp"
#include "support/catch.hpp"
#include "support/host_function_backend.hpp"
#include "support/losing_communicator.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;
using annulus::PeerRing;
using annulus::Rotation;
using annulus::Schedule;

namespace {

struct Case {
  int ranks;
  Rotation rotation;
  Schedule schedule = Schedule::ring;
  int ranks_per_group = 0;
};

RingProblem problem_of(Case const& one) {
  RingProblem problem = small_ring_problem(
      {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 4 * one.ranks + 1, .head_dim = 3}, one.ranks,
      annulus::Contiguous{}, one.rotation);
  give_sinks(problem, 1);
  problem.options.schedule = one.schedule;
  problem.options.ranks_per_group = one.ranks_per_group;
  settle(problem);
  problem.options.checked = false;
  round_operands<float>(problem);
  return problem;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    for (int ranks : {1, 2, 3, 4}) {
      all.push_back({ranks, rotation});
      all.push_back({ranks, rotation, Schedule::both_directions});
    }
    all.push_back({4, rotation, Schedule::double_ring, 2});
    all.push_back({4, rotation, Schedule::two_levels, 2});
    all.push_back({4, rotation, Schedule::tiles, 2});
  }
  all.push_back({3, Rotation::automatic, Schedule::all_gather, 3});
  return all;
}

RingResult run(RingProblem const& problem, PeerRing& ring, int calls) {
  HostFunctionBackend<> backend(-1);
  return run_rank<float, SpacePlacement<ManagedPlace>>(problem, ring, backend, annulus::EveryPair{}, calls);
}

}  // namespace

TEST_CASE("a pass on a ring of GPUs has the bits of a pass on a simulated ring", "[peer]") {
  if (number_of_gpus() == 0) return;
  for (Case const& one : cases()) {
    RingProblem const problem = problem_of(one);
    INFO(problem.text << ", " << name_of(one.schedule));
    annulus::SimulatedRingOptions const messages{.zero_copy = annulus::ZeroCopy::never};
    auto const expected = results_of_ranks<float>(problem, annulus::ReferenceBackend{}, messages);
    auto const results =
        annulus::run_peer_ring(gpus_of(one.ranks, 2), [&](PeerRing& ring) { return run(problem, ring, 2); });
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      INFO("rank " << rank);
      CHECK(different_results(results[rank], expected[rank]) == "");
    }
  }
}

namespace {

/// Whether each rank throws CommunicationError if, on rank 1, a wait for a shift fails.
std::vector<bool> run_failing(RingProblem const& problem, int fatal_wait) {
  return annulus::run_peer_ring(gpus_of(problem.ranks, 1), [&](PeerRing& peer) {
    LosingCommunicator ring(peer, peer.rank() == 1 ? fatal_wait : -1);
    HostFunctionBackend<> backend(-1);
    try {
      run_rank<float, SpacePlacement<ManagedPlace>>(problem, ring, backend);
      return false;
    } catch (annulus::CommunicationError const&) {
      return true;
    }
  });
}

}  // namespace

TEST_CASE("a wait that fails in the middle of a pass ends the ring of GPUs on all ranks", "[peer]") {
  if (number_of_gpus() == 0) return;
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    RingProblem const problem = problem_of({3, rotation});
    for (int wait = 0;; ++wait) {
      auto const failed = run_failing(problem, wait);
      INFO(problem.text << ": wait " << wait << " fails");
      if (!failed[1]) {
        CHECK(wait > problem.ranks);
        break;
      }
      CHECK(failed == std::vector{true, true, true});
    }
  }
}
