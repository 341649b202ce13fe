#pragma once
// Ring problems on simulated NeuronCores: one Trainium backend per rank.

#include <string>
#include <vector>

#include "annulus/backend/nki/nki.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/judge.hpp"
#include "support/planned_pass.hpp"
#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

namespace annulus_test {

/// Forward and backward; the problem is settled and holds numbers of T.
template <class T>
RingResult on_devices(RingProblem const& problem, annulus::NkiOptions const& options = {}) {
  return assemble(problem, annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
                    annulus::NkiBackend backend(options);
                    return run_rank<T>(problem, ring, backend);
                  }));
}

/// Every target and number of cores, in turn.
inline annulus::NkiOptions device_number(std::uint64_t n) {
  return {.target = n % 2 ? annulus::nki::Target::trn3 : annulus::nki::Target::trn2, .cores = n / 2 % 2 ? 1 : 2};
}

}  // namespace annulus_test
