// Passes over SimulatedRing, for annulus::cpu.

#include "annulus/attention/compiled.hpp"

namespace annulus {
ANNULUS_CPU_PASSES(, SimulatedRing)
}
