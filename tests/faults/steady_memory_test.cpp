// Memory in use after ten thousand calls of varying shapes equals that after one thousand.

#include <annulus/comm/simulated_ring.hpp>

#include "faults/steady_memory.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::ZeroCopy;

TEST_CASE("memory does not grow with the number of calls on a simulated ring", "[faults]") {
  for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::automatic}) {
    INFO("zero_copy " << annulus::name_of(zero_copy));
    auto const uses = annulus::run_ring(
        2, [](annulus::SimulatedRing& ring) { return memory_of_calls(ring, 1000, 10'000); }, {.zero_copy = zero_copy});
    for (auto const& [early, late] : uses) {
      CHECK(late.allocations == early.allocations);
      CHECK(late.bytes == early.bytes);
    }
  }
}
