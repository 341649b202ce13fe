// Runs the communicator suites on every communicator that needs no launcher; tests/mpi does so for MpiRing.

#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "conformance/communicator_suite.hpp"
#include "conformance/foreign_implementation.hpp"
#include "conformance/zero_copy_suite.hpp"
#include "support/recording_communicator.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus;
using namespace annulus_test;

TEST_CASE("SelfRing is a communicator", "[comm]") {
  communicator_suite(
      [](int, auto function) {
        SelfRing ring;
        function(ring);
      },
      {1});
}

TEST_CASE("SimulatedRing is a communicator", "[comm]") {
  communicator_suite([](int ranks, auto function) { run_ring(ranks, function); });
}

TEST_CASE("SimulatedRing exchanges without copies", "[comm]") {
  zero_copy_suite([](int ranks, auto function) { run_ring(ranks, function, {.zero_copy = ZeroCopy::always}); });
}

TEST_CASE("a recorded ring is a communicator", "[comm]") {
  communicator_suite(
      [](int ranks, auto function) {
        run_ring(ranks, [&](SimulatedRing& ring) {
          RecordingCommunicator recorded(ring);
          function(recorded);
        });
      },
      {1, 3});
}

TEST_CASE("an unruly ring is a communicator", "[comm]") {
  communicator_suite(
      [](int ranks, auto function) {
        run_ring(ranks, [&](SimulatedRing& ring) {
          UnrulyCommunicator unruly(ring, {.seed = 7});
          function(unruly);
        });
      },
      {1, 2, 5});
}

TEST_CASE("a ring of a foreign memory space is a communicator", "[comm]") {
  communicator_suite(
      [](int ranks, auto function) {
        run_ring(ranks, [&](SimulatedRing& ring) {
          UnrulyCommunicator unruly(ring, {.seed = 11});
          // Late, as ranks that start shifts in different orders would wait for each other's.
          ForeignRing foreign(unruly, {.late = true});
          function(foreign);
        });
      },
      {1, 2, 4});
  CHECK(ForeignRegistry::instance().allocations() == 0);
  CHECK(ForeignRegistry::instance().take_overruns() == 0);
}
