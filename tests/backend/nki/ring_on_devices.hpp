#pragma once
// Ring problems on simulated NeuronCores: one Trainium backend per rank.

#include <string>
#include <vector>

#include "annulus/backend/nki.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/judge.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

namespace annulus_test {

/// Forward and backward pass; the problem must be settled, with operands that T can represent.
template <class T>
RingResult on_devices(RingProblem const& problem, annulus::NkiOptions const& options = {}) {
  return assemble(problem, annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
                    annulus::NkiBackend backend(options);
                    return run_rank<T>(problem, ring, backend);
                  }));
}

/// Cycles through all targets and numbers of cores.
inline annulus::NkiOptions device_number(std::uint64_t n) {
  return {.target = n % 2 ? annulus::nki::Target::trn3 : annulus::nki::Target::trn2, .cores = n / 2 % 2 ? 1 : 2};
}

}  // namespace annulus_test
