// Passes of CudaBackend on a ring of GPUs: right results, the bits of the same passes on a ring that stages its
// messages in host memory, and those of a graph that holds the passes of all ranks.

#include <vector>

#include "annulus/backend/cuda/cuda.hpp"
#include "annulus/comm/cuda_staging.hpp"
#include "annulus/comm/peer_ring.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "comm/peer/backend_problem.hpp"
#include "comm/peer/ring_graph.hpp"
#include "support/catch.hpp"
#include "support/cuda_memory.hpp"
#include "support/cuda_space.hpp"
#include "support/judge.hpp"
#include "support/repeated_calls.hpp"
#include "support/ring_run.hpp"

using namespace annulus_test;
using annulus::CudaBackend;
using annulus::CudaMemory;
using annulus::PeerRing;
using annulus::Rotation;
using annulus::Schedule;
using annulus::SimulatedRing;

namespace {

/// Results of the ranks over messages that are staged in host memory.
std::vector<RingResult> staged_results(RingProblem const& problem, std::vector<int> const& gpus) {
  return annulus::run_ring(problem.ranks, [&](SimulatedRing& host) {
    annulus::cuda::detail::CurrentDevice const current(gpus[static_cast<std::size_t>(host.rank())]);
    annulus::CudaStaging staging;
    annulus::StagedRing<CudaMemory, SimulatedRing, annulus::CudaStaging> ring(host, staging);
    CudaBackend backend;
    return run_rank<float, CudaPlacement>(problem, ring, backend);
  });
}

}  // namespace

TEST_CASE("CudaBackend on a ring of GPUs has the bits of staged messages", "[peer][gpu]") {
  if (number_of_gpus() == 0) return;
  for (int const ranks : {1, 2, 3, 4})
    for (int const ranks_a_gpu : {1, 2})
      for (Rotation const rotation : {Rotation::keys, Rotation::queries})
        for (Schedule const schedule : {Schedule::ring, Schedule::both_directions}) {
          RingProblem const problem = backend_problem(ranks, rotation, schedule);
          std::vector<int> const gpus = gpus_of(ranks, ranks_a_gpu);
          INFO(problem.text << ", " << name_of(schedule));
          CAPTURE(gpus);
          auto const expected = staged_results(problem, gpus);
          auto const results = annulus::run_peer_ring(gpus, [&](PeerRing& ring) {
            CudaBackend backend;
            return run_rank<float, CudaPlacement>(problem, ring, backend, annulus::EveryPair{}, 3);
          });
          CHECK(judge(problem, assemble(problem, results), float_bounds).complaint == "");
          for (std::size_t rank = 0; rank < results.size(); ++rank) {
            INFO("rank " << rank);
            CHECK(different_results(results[rank], expected[rank]) == "");
          }
        }
}

TEST_CASE("the passes of all ranks of a ring of GPUs are captured in one graph", "[peer][gpu]") {
  if (number_of_gpus() == 0) return;
  for (int const ranks : {1, 2, 3, 4})
    for (int const ranks_a_gpu : {1, 2}) {
      std::vector<int> const gpus = gpus_of(ranks, ranks_a_gpu);
      CAPTURE(gpus);
      RingEvents const events(gpus);
      auto const as_direct = annulus::run_peer_ring(gpus, [&](PeerRing& ring) {
        RepeatedCalls<Eigen::bfloat16, PeerRing> calls(ring);
        auto const fill = [&](unsigned seed) { calls.fill(seed + static_cast<unsigned>(100 * ring.rank())); };
        fill(1);
        calls.run();  // makes plans, allocates and uploads
        fill(2);
        auto const unwritten = calls.results();
        RingGraph const graph(ring, calls.stream(), events, [&] { calls.run(); });
        bool equal = calls.results() == unwritten;
        for (unsigned const seed : {3u, 4u}) {
          fill(seed);
          graph.launch();
          auto const replayed = calls.results();
          fill(seed);
          calls.run();
          equal = equal && replayed == calls.results() && replayed != unwritten;
        }
        return equal;
      });
      CHECK(as_direct == std::vector<bool>(gpus.size(), true));
    }
}
