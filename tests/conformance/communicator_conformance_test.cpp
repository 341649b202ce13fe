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

TEST_CASE("a failed check of the suite says what is asked and what is seen", "[comm]") {
  RankOutcome outcome{RankOutcome::returned};
  CHECK(complaint_unless_lost(1, outcome) == "the rank must throw CommunicationError; seen: it returns ");
  outcome = {RankOutcome::communication_error, "no peer", 2};
  CHECK(complaint_unless_lost(1, outcome) == "CommunicationError::rank() must be 1, which throws it; it is 2");
  CHECK(complaint_unless_lost(2, outcome) == "what() must contain 'rank '; it is: no peer");
  CHECK(complaint_unless_blamed(3, outcome) == "CommunicationError::neighbour() must be 3, which failed; it is -1");
  outcome.text = "rank 3 is lost";
  CHECK(complaint_unless_lost(2, outcome) == "");
  CHECK(Catch::StringMaker<RankOutcome::Kind>::convert(outcome.kind) == "CommunicationError");
}

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

TEST_CASE("SimulatedRing keeps its deadline", "[comm]") {
  constexpr std::chrono::milliseconds deadline(200);
  communicator_deadline_suite([&](int ranks, auto function) { run_ring(ranks, function, {.timeout = deadline}); },
                              deadline);
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
