// Ranks of one node do not take each other's cores.

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

TEST_CASE("ranks that are bound to the same cores share them", "[mpi]") {
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
  // Each rank has a core at least, else no core is taken twice; none is left over where all may run everywhere.
  CHECK(all_shares <= std::max(together, world_size()));
  if (mine.count() == together) CHECK(share >= together / world_size());
  CHECK(cpu::ThreadPool::shared().cores() == share);

  // No more threads than that work on a call that leaves the number to the pool.
  std::atomic<int> here{0};
  cpu::ThreadPool::Call(cpu::ThreadPool::shared(), 0).run(1000, [&](cpu::Team const&, int) {
    ++here;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  CHECK(here <= share);
}

TEST_CASE("a ring of one rank does not give back the cores of all_shares", "[mpi]") {
  MpiRing const ring(MPI_COMM_WORLD, options_of_tests());
  int const share = ProcessCores::shared().count();
  MpiRing const alone(MPI_COMM_SELF, options_of_tests());
  CHECK(ProcessCores::shared().count() == share);
}
