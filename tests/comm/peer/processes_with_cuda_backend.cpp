// Passes of CudaBackend on a ring of GPUs whose ranks are forked processes: the bits of the same passes on a ring whose
// ranks are threads, which each process runs afterwards.

#include "comm/peer/forked_ranks.hpp"

#if defined(ANNULUS_TEST_FORKS)

#include <string>
#include <vector>

#include "annulus/backend/cuda/cuda.hpp"
#include "annulus/comm/peer_ring.hpp"
#include "comm/peer/backend_problem.hpp"
#include "support/catch.hpp"
#include "support/cuda_memory.hpp"
#include "support/ring_run.hpp"

using namespace annulus_test;
using annulus::CudaBackend;
using annulus::PeerRing;
using annulus::Rotation;
using annulus::Schedule;

TEST_CASE("CudaBackend on processes has the bits of threads", "[peer][processes][gpu]") {
  for (int const ranks : {1, 2, 3, 4})
    for (int const ranks_a_gpu : {1, 2})
      for (Rotation const rotation : {Rotation::keys, Rotation::queries})
        for (Schedule const schedule : {Schedule::ring, Schedule::both_directions}) {
          RingProblem const problem = backend_problem(ranks, rotation, schedule);
          INFO(problem.text << ", " << name_of(schedule));
          CAPTURE(ranks_a_gpu);
          auto const run = [&](auto& ring) {
            CudaBackend backend;
            return run_rank<float, CudaPlacement>(problem, ring, backend, annulus::EveryPair{}, 3);
          };
          auto const ends = run_forked_ranks({ranks, ranks_a_gpu}, [&](PeerProcessRing& ring) -> std::string {
            auto const result = run(ring);
            ring.close_memory();
            auto const of_threads = annulus::run_peer_ring(gpus_of(ranks, ranks_a_gpu), run);
            return different_results(result, of_threads[static_cast<std::size_t>(ring.rank())]);
          });
          for (ForkedEnd const& end : ends) {
            CHECK(end.outcome.text == "");
            CHECK(end.signal == 0);
          }
        }
}

#endif
