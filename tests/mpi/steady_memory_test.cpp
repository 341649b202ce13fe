// Memory and MPI communicators do not grow with the number of calls, nor with the number of failed rings.

#include <mpi.h>

#include <annulus/comm/mpi.hpp>
#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "faults/steady_memory.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"
#include "support/counted_allocations.hpp"

using namespace annulus_test;
using annulus::ZeroCopy;

namespace {
std::atomic<int> live_communicators{0};

int counted(int code) {
  ++live_communicators;
  return code;
}
}  // namespace

// MPI's profiling interface: these functions intercept those of the library to count communicators.
extern "C" {
int MPI_Comm_dup(MPI_Comm from, MPI_Comm* made) { return counted(PMPI_Comm_dup(from, made)); }
int MPI_Comm_split(MPI_Comm from, int colour, int key, MPI_Comm* made) {
  int const code = PMPI_Comm_split(from, colour, key, made);
  return *made == MPI_COMM_NULL ? code : counted(code);
}
int MPI_Comm_split_type(MPI_Comm from, int type, int key, MPI_Info info, MPI_Comm* made) {
  int const code = PMPI_Comm_split_type(from, type, key, info, made);
  return *made == MPI_COMM_NULL ? code : counted(code);
}
int MPI_Comm_create(MPI_Comm from, MPI_Group group, MPI_Comm* made) {
  int const code = PMPI_Comm_create(from, group, made);
  return *made == MPI_COMM_NULL ? code : counted(code);
}
int MPI_Comm_create_group(MPI_Comm from, MPI_Group group, int tag, MPI_Comm* made) {
  return counted(PMPI_Comm_create_group(from, group, tag, made));
}
int MPI_Comm_free(MPI_Comm* communicator) {
  --live_communicators;
  return PMPI_Comm_free(communicator);
}
}

namespace {

void check_calls(int some, int all) {
  if (world_size() != 2) return;
  for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::automatic}) {
    INFO("zero_copy " << annulus::name_of(zero_copy));
    annulus::MpiRing ring(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(60), .zero_copy = zero_copy});
    auto const [early, late] = memory_of_calls(ring, some, all);
    CHECK(late.allocations <= early.allocations);
    CHECK(late.bytes <= early.bytes);
    // MPI allocates memory of its own, in chunks; a leak of a hundred bytes a call would exceed this.
    CHECK(late.resident <= early.resident + 100L * (all - some));
  }
}

/// A ring on which the last rank gives up while the others wait for it.
void fail_a_ring(ZeroCopy zero_copy) {
  annulus::MpiRing ring(MPI_COMM_WORLD, {.timeout = std::chrono::seconds(60), .zero_copy = zero_copy});
  if (ring.rank() == ring.size() - 1) return ring.abandon("the test makes it fail");
  std::array<std::byte, 64> record{};
  std::vector<std::byte> all(record.size() * static_cast<std::size_t>(ring.size()));
  CHECK_THROWS_AS(ring.all_gather(record, all), annulus::CommunicationError);
}

}  // namespace

TEST_CASE("memory does not grow with the number of calls on a ring over MPI", "[mpi][faults]") {
  check_calls(400, 2000);
}

TEST_CASE("memory does not grow with ten thousand calls on a ring over MPI", "[mpi][faults][.long]") {
  check_calls(1000, 10'000);
}

TEST_CASE("failed rings leave no communicators and no memory behind", "[mpi][faults]") {
  if (world_size() < 2) return;
  for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::automatic}) {
    INFO("zero_copy " << annulus::name_of(zero_copy));
    int communicators = 0;
    MemoryUse early;
    for (int ring = 1; ring <= 200; ++ring) {
      fail_a_ring(zero_copy);
      MPI_Barrier(MPI_COMM_WORLD);
      if (ring != 20) continue;
      communicators = live_communicators;
      early = memory_use();
    }
    MemoryUse const late = memory_use();
    // The last ring may still wait for the notices of its peers, as after twenty rings.
    CHECK(live_communicators <= communicators + 1);
    CHECK(late.allocations <= early.allocations + 40);
    CHECK(late.resident <= early.resident + 180 * 4096);
  }
}
