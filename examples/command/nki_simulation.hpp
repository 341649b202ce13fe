#pragma once
// Simulation of the kernels of `annulus nki`, one thread per rank.

#include <vector>

#include "nki_kernels.hpp"

namespace annulus_command {

/// Cost of simulating one kernel.
struct NkiRun {
  annulus::Index instructions = 0;  ///< of all ranks and cores
  double seconds = 0;
};

/// Ranks in the physical order of the ring: shuffled by the seed of --ring-order, or in rank order without it.
std::vector<int> nki_ring_order(NkiOptions const& options);

/// Runs one kernel on all ranks of a ring and gathers its outputs into `results`, which must hold output and lse for
/// the backward kernel. With several rings, simulates the last one.
NkiRun run_nki(NkiProblem const& problem, NkiKernel const& kernel, std::vector<int> const& ring_order,
               Inputs<float> const& inputs, Results<float>& results);

}  // namespace annulus_command
