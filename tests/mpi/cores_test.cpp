// Default number of threads of the ranks of a node, which share its cores.

#include <algorithm>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/comm/mpi.hpp>
#include <atomic>
#include <chrono>
#include <thread>

#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

TEST_CASE("ranks of a node divide its cores by default, and no ring changes the division", "[mpi]") {
  CpuBackend const backend;
  int const before = backend.max_threads();
  CHECK(before == default_threads());
  CHECK(detail::ranks_of_node() == world_size());  // they run on one node here
  int const mine = detail::cores_of_process(0);
  CHECK(before == std::clamp(detail::cores_of_node() / world_size(), 1, mine));
  {
    MpiRing const ring(MPI_COMM_WORLD, options_of_tests());
    CHECK(CpuBackend().max_threads() == before);
    CHECK(default_threads() == before);
    MpiRing const alone(MPI_COMM_SELF, options_of_tests());
    CHECK(CpuBackend().max_threads() == before);
  }
  CHECK(backend.max_threads() == before);
  CHECK(CpuBackend{.threads = 7}.max_threads() == 7);
  CHECK(CpuBackend{.threads = default_threads()}.max_threads() == before);

  // A call that leaves the number of threads to the backend uses no more threads than that.
  std::atomic<int> here{0};
  cpu::ThreadPool::Call(cpu::ThreadPool::shared(), backend.threads).run(1000, [&](cpu::Team const&, int) {
    ++here;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  CHECK(here <= before);
}
