// The communicator suite over MPI: every number of ranks that this launch has room for.

#include <algorithm>
#include <vector>

#include "conformance/communicator_suite.hpp"
#include "conformance/zero_copy_suite.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/recording_communicator.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

std::vector<int> those_with_room(std::vector<int> rank_counts) {
  std::erase_if(rank_counts, [](int ranks) { return ranks > world_size(); });
  return rank_counts;
}

}  // namespace

TEST_CASE("MpiRing is a communicator", "[mpi][comm]") {
  // Launches of other sizes try the smaller rings.
  communicator_suite(RunMpiRing{}, {world_size()});
}

TEST_CASE("MpiRing on part of the ranks is a communicator", "[mpi][comm]") {
  communicator_suite(RunMpiRing{}, those_with_room({2}));
}

TEST_CASE("MpiRing that sends in pieces is a communicator", "[mpi][comm]") {
  MpiRingOptions options = options_of_tests();
  options.max_message_bytes = 3000;
  communicator_suite(RunMpiRing{options}, {std::min(world_size(), 3)});
}

TEST_CASE("an unruly, recorded MpiRing is a communicator", "[mpi][comm]") {
  communicator_suite(
      [](int ranks, auto function) {
        return RunMpiRing{}(ranks, [&](MpiRing& ring) {
          UnrulyCommunicator unruly(ring, {.seed = 5});
          RecordingCommunicator recorded(unruly);
          function(recorded);
        });
      },
      {std::min(world_size(), 4)});
}

TEST_CASE("MpiRing that may not share memory is a communicator, and does not share", "[mpi][comm]") {
  MpiRingOptions options = options_of_tests();
  options.zero_copy = ZeroCopy::never;
  communicator_suite(
      [&](int ranks, auto function) {
        return RunMpiRing{options}(ranks, [&](MpiRing& ring) {
          CHECK(!ring.shares_memory());
          function(ring);
        });
      },
      {std::min(world_size(), 3)});
}

TEST_CASE("MpiRing shares_memory memory", "[mpi][comm]") {
  MpiRingOptions options = options_of_tests();
  options.zero_copy = ZeroCopy::always;
  zero_copy_suite(RunMpiRing{options}, {world_size()});
  if (world_size() > 2) zero_copy_suite(RunMpiRing{}, {2});
}
