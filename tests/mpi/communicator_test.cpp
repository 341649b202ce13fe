// The communicator suites over MPI, for the numbers of ranks that this launch has.

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

std::vector<int> rank_counts_that_fit(std::vector<int> rank_counts) {
  std::erase_if(rank_counts, [](int ranks) { return ranks > world_size(); });
  return rank_counts;
}

}  // namespace

TEST_CASE("MpiRing is a communicator", "[mpi][comm]") {
  // Launches of other sizes try the smaller rings.
  communicator_suite(RunMpiRing{}, {world_size()});
}

TEST_CASE("MpiRing on part of the ranks is a communicator", "[mpi][comm]") {
  communicator_suite(RunMpiRing{}, rank_counts_that_fit({2}));
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

TEST_CASE("MpiRing with zero_copy never is a communicator, and shares no memory", "[mpi][comm]") {
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

TEST_CASE("MpiRing keeps its deadline", "[mpi][comm]") {
  MpiRingOptions options = options_of_tests();
  options.timeout = std::chrono::milliseconds(200);
  communicator_deadline_suite(RunMpiRing{options}, options.timeout, {std::min(world_size(), 3)});
}

TEST_CASE("MpiRing exchanges without copies", "[mpi][comm]") {
  MpiRingOptions options = options_of_tests();
  options.zero_copy = ZeroCopy::always;
  zero_copy_suite(RunMpiRing{options}, {world_size()});
  if (world_size() > 2) zero_copy_suite(RunMpiRing{}, {2});
}
