// MpiRing on GPU memory, staged in pinned memory and, where MPI reads it, passed on as it is.

#include "annulus/comm/mpi_cuda.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "conformance/communicator_suite.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"
#include "support/cuda_space.hpp"
#include "support/host_function_backend.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// Managed memory is host memory, too, which every MPI reads.
constexpr std::array every_choice{GpuMessages::staged, GpuMessages::direct};

std::vector<int> rank_counts() {
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(world_size(), 3); ++ranks) counts.push_back(ranks);
  return counts;
}

}  // namespace

TEST_CASE("a ring of GPU memory over MPI is a communicator", "[mpi]") {
  if (number_of_gpus() == 0) return;
  for (GpuMessages const messages : every_choice)
    communicator_suite(
        [messages](int ranks, auto function) {
          return RunMpiRing{}(ranks, [&](MpiRing& ring) {
            MpiCudaRing on_gpus(ring, messages);
            function(on_gpus);
          });
        },
        rank_counts());
}

TEST_CASE("MPI is asked whether it reads GPU memory", "[mpi]") {
  if (number_of_gpus() == 0) return;
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  CHECK(MpiCudaRing(ring).is_staged() == !mpi_is_cuda_aware());
  CHECK(MpiCudaRing(ring, GpuMessages::staged).is_staged());
  CHECK_FALSE(MpiCudaRing(ring, GpuMessages::direct).is_staged());
}

TEST_CASE("passes over GPU memory and MPI have the bits of passes in host memory", "[mpi]") {
  if (number_of_gpus() == 0) return;
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  for (GpuMessages const messages : every_choice)
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem =
          small_ring_problem({.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 17, .head_dim = 3},
                             ring.size(), Contiguous{}, rotation);
      settle(problem);
      round_operands<float>(problem);
      ReferenceBackend host;
      RingResult const expected = run_rank<float>(problem, ring, host);
      MpiCudaRing on_gpus(ring, messages);
      HostFunctionBackend<> backend(-1);
      RingResult result = run_rank<float, SpacePlacement<ManagedPlace>>(problem, on_gpus, backend);
      // Windows need fewer buffers.
      result.forward_buffers = expected.forward_buffers;
      result.backward_buffers = expected.backward_buffers;
      CHECK(different_results(result, expected) == "");
    }
}
