// Sweep of failing allocations: each allocation of one rank fails in one run, and the rank continues with its next
// call. No rank hangs, and every call that returns has right results.

#include <annulus/comm/simulated_ring.hpp>
#include <chrono>
#include <vector>

#include "faults/allocation_sweep.hpp"
#include "faults/watched_ring.hpp"
#include "support/catch.hpp"
#include "support/counted_allocations.hpp"

using namespace annulus_test;
using annulus::ZeroCopy;

TEST_CASE("the chosen allocation fails, and memory is counted", "[faults]") {
  long const live = live_allocations, bytes = live_bytes;
  {
    std::vector<int> const some(1000);
    CHECK(live_allocations == live + 1);
#if defined(__GLIBC__)
    CHECK(live_bytes >= bytes + 4000);
#endif
    CHECK(some[999] == 0);
  }
  CHECK(live_allocations == live);
  CHECK(live_bytes == bytes);
  allocations_until_failure = 1;
  std::vector<int> first(10);
  CHECK_THROWS_AS(std::vector<int>(10), std::bad_alloc);
  CHECK_NOTHROW(std::vector<int>(10));
}

TEST_CASE("a rank of a simulated ring that runs out of memory ends the calls of all, and none hangs", "[faults]") {
  for (int ranks : {2, 3})
    for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::automatic})
      for (FailingCall const& failing : failing_calls(ranks)) {
        int hangs = 0;
        auto const run = [&](long allocation) {
          annulus::SimulatedRingOptions const options{.zero_copy = zero_copy, .timeout = std::chrono::seconds(5)};
          auto [outcomes, hung] =
              run_watched(ranks, options, std::chrono::seconds(10), [&](annulus::SimulatedRing& ring, LivingRanks&) {
                return calls_with_failure(ring, failing, allocation);
              });
          hangs += hung ? 1 : 0;
          return outcomes;
        };
        auto const expected = run(-1);
        for (auto const& rank : expected) REQUIRE(rank.threw == 0);
        bool reached = true;
        int failures = 0;
        for (long allocation = 0; reached && hangs == 0; ++allocation) {
          auto const outcomes = run(allocation);
          reached = outcomes[static_cast<std::size_t>(failing.culprit)].failed;
          failures += reached ? 1 : 0;
          INFO(failing.text() << ", allocation " << allocation << " of " << ranks << " ranks, zero_copy "
                              << annulus::name_of(zero_copy));
          CHECK(complaints_about(outcomes, expected) == "");
          CHECK(hangs == 0);
          if (!reached) CHECK(total_threw(outcomes) == 0);
        }
        CHECK(failures > 0);
      }
}
