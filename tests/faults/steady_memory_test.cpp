// Ten thousand calls of varying shapes allocate no more than a thousand.

#include <annulus/comm/simulated_ring.hpp>

#include "faults/steady_memory.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::InPlace;

TEST_CASE("memory does not grow with the number of calls on a simulated ring", "[faults]") {
  for (InPlace in_place : {InPlace::never, InPlace::automatic}) {
    INFO("in place " << annulus::name_of(in_place));
    auto const uses = annulus::run_ring(
        2, [](annulus::SimulatedRing& ring) { return memory_of_calls(ring, 1000, 10'000); }, {.in_place = in_place});
    for (auto const& [early, late] : uses) {
      CHECK(late.allocations == early.allocations);
      CHECK(late.bytes == early.bytes);
    }
  }
}
