// Calls of varying shapes on simulated rings: the memory in use must not grow.

#include <annulus/comm/simulated_ring.hpp>
#include <string>

#include "soak/soak_calls.hpp"
#include "support/counted_allocations.hpp"
#include "support/reserved_workspaces.hpp"

int main(int argc, char** argv) {
  int const calls = annulus_test::calls_of(argc, argv);
  if (calls == 0) return 2;
  annulus_test::reserve_workspaces();
  bool flat = true;
  for (annulus::ZeroCopy zero_copy : {annulus::ZeroCopy::never, annulus::ZeroCopy::automatic}) {
    auto const reports = annulus::run_ring(
        3, [&](annulus::SimulatedRing& ring) { return annulus_test::soak(ring, calls); }, {.zero_copy = zero_copy});
    std::string const name = "3 simulated ranks, zero_copy " + std::string(annulus::name_of(zero_copy));
    for (annulus_test::SoakReport const& report : reports) flat = report.print(name.c_str()) && flat;
  }
  return flat ? 0 : 1;
}
