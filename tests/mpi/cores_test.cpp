// Division of the cores of a node among its ranks.

#include <algorithm>
#include <annulus/backend/cpu/thread_pool.hpp>
#include <annulus/comm/mpi.hpp>
#include <atomic>
#include <chrono>
#include <thread>

#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

TEST_CASE("ranks that are bound to the same cores divide them", "[mpi]") {
  MpiRing const ring(MPI_COMM_WORLD, options_of_tests());
  // All cores of the ranks, which run on one node here.
  CoreSet const mine = CoreSet::of_process();
  int together = 0, all_shares = 0;
  for (int core = 0; core < CoreSet::capacity; ++core) {
    int bound = mine.has(core), ranks = 0;
    MPI_Allreduce(&bound, &ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    together += ranks > 0;
  }
  int const share = ProcessCores::shared().count();
  MPI_Allreduce(&share, &all_shares, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  CHECK(share >= 1);
  CHECK(share <= mine.count());
  // Each rank has at least one core; otherwise no core is assigned twice, and, if all ranks may run on all cores, every
  // core is assigned.
  CHECK(all_shares <= std::max(together, world_size()));
  if (mine.count() == together) CHECK(share >= together / world_size());
  CHECK(cpu::detail::ThreadPool::shared().cores() == share);

  // A call that leaves the number of threads to the pool uses no more threads than that.
  std::atomic<int> here{0};
  cpu::detail::ThreadPool::Call(cpu::detail::ThreadPool::shared(), 0).run(1000, [&](cpu::detail::Team const&, int) {
    ++here;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  CHECK(here <= share);
}

TEST_CASE("a later ring of one rank does not undo the division of cores", "[mpi]") {
  MpiRing const ring(MPI_COMM_WORLD, options_of_tests());
  int const share = ProcessCores::shared().count();
  MpiRing const alone(MPI_COMM_SELF, options_of_tests());
  CHECK(ProcessCores::shared().count() == share);
}
