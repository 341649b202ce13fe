// Shared memory of ranks on one node: which memory can be mapped, and its lifetime after its owner has gone.

#include <algorithm>
#include <annulus/comm/mpi.hpp>
#include <annulus/comm/mpi/shared_memory.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "conformance/communicator_ranks.hpp"
#include "conformance/zero_copy_suite.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using annulus::detail::MpiSharedMemory;
using annulus::detail::MappingAddress;
using annulus::detail::SharedMapping;

namespace {

/// Number of mappings of shared memory in this process.
int mappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:annulus") != std::string::npos;
  return count;
}

}  // namespace

TEST_CASE("two mappings of shared memory have the same bytes, and one outlives its owner", "[mpi][shared]") {
  auto owner = std::make_optional(SharedMapping::make(10'000, 5));
  REQUIRE(*owner);
  auto const other = SharedMapping::open(owner->address());
  REQUIRE(other);
  CHECK(other.data() != owner->data());
  std::memset(owner->data(), 7, 10'000);
  MappingAddress const address = owner->address();
  owner.reset();
  CHECK(other.data()[9'999] == std::byte{7});
  CHECK(!SharedMapping::open(address));
}

TEST_CASE("invalid addresses of shared memory are not mapped", "[mpi][shared]") {
  auto const mapping = SharedMapping::make(4096, 5);
  REQUIRE(mapping);
  MappingAddress const good = mapping.address();
  auto const opens = [](MappingAddress const& address) { return static_cast<bool>(SharedMapping::open(address)); };
  CHECK(opens(good));
  CHECK(!opens({}));
  CHECK(!opens({good.process, good.descriptor, 8192, 5}));  // would fault past the end of the memory
  CHECK(!opens({good.process, 9999, 4096, 5}));
  CHECK(!opens({0x7ffffff0, good.descriptor, 4096, 5}));
  CHECK(!opens({good.process, good.descriptor, 4096, 6}));  // refers to other memory
}

TEST_CASE("window tables of another node, or of unrelated processes, are detected", "[mpi][shared]") {
  MpiSharedMemory one(0, 2, 111), two(1, 2, 222);
  MappingAddress const good = two.address();
  auto const unreachable = [&](std::vector<MappingAddress> const& seen) { return MpiSharedMemory(0, 2, 1).open(seen); };
  CHECK(unreachable({one.address(), good}) == std::nullopt);
  CHECK(unreachable({one.address(), {good.process, good.descriptor, good.bytes, 223}}) == 1);
  CHECK(unreachable({{}, good}) == 0);
  CHECK(unreachable({one.address(), {good.process, 9999, good.bytes, good.key}}) == 1);
}

TEST_CASE("destroyed buffers leave no mappings behind", "[mpi][shared]") {
  int const before = mappings();
  {
    MpiRing ring(MPI_COMM_WORLD, options_of_tests());
    REQUIRE(ring.shares_memory());
    int most = 0;
    for (int round = 0; round < 30; ++round) {
      // Each is 1.3 times as large as the one before, so that none fits the memory of the one before.
      SharedRuns shared(ring, {static_cast<std::size_t>(1000.0 * std::pow(1.3, round))});
      shared.fill(round);
      auto window = shared.share(Channel::prefetched, 1);
      window.wait();
      CHECK(shared.complaint(window, ring_neighbour(ring.rank(), -1, ring.size()), round) == "");
      window.release();
      shared.reclaim();
      most = std::max(most, mappings() - before);
    }
    // The window tables, one or two buffers of this rank, and the last ones of its neighbour.
    CHECK(most <= 1 + world_size() + 2 + 4);
    // Buffers of equal size, one after the other, use one mapping.
    int const now = mappings();
    for (int round = 0; round < 10; ++round) auto const again = ring.allocate(2'000'000);
    CHECK(mappings() <= now + 1);
  }
  // A ring is freed when a later one finds that all peers have left it; their notices may take a moment.
  bool freed = false;
  for (int attempt = 0; attempt < 50 && !freed; ++attempt) {
    MPI_Barrier(MPI_COMM_WORLD);
    MpiRing const next(MPI_COMM_WORLD, {.timeout = options_of_tests().timeout, .zero_copy = ZeroCopy::never});
    int mine = mappings() <= before, all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    freed = all == 1;
  }
  CHECK(freed);
}

TEST_CASE("a wait for a late window ends at the deadline", "[mpi][shared]") {
  if (world_size() < 2) return;
  MpiRing ring(MPI_COMM_WORLD, {.timeout = std::chrono::milliseconds(200)});
  Rank const late = world_size() - 1;
  SharedRuns shared(ring, {large});
  shared.fill(1);
  std::string text;
  try {
    if (ring.rank() == late) std::this_thread::sleep_for(std::chrono::seconds(1));
    for (int round = 0; round < 2 * ring.size(); ++round) {
      auto window = shared.share(Channel::carried, 1);
      window.wait();
      window.release();
      shared.reclaim();
    }
  } catch (CommunicationError const& error) {
    text = error.what();
  }
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("waited 200 ms for rank"));
  MPI_Barrier(MPI_COMM_WORLD);
}
