#pragma once
// The kernels of `annulus nki` on simulated cores, one thread per rank.

#include <vector>

#include "nki_kernels.hpp"

namespace annulus_command {

/// What running one kernel took here.
struct NkiRun {
  annulus::Index instructions = 0;  ///< of all ranks and cores
  double seconds = 0;
};

/// Physical order of the ring: the workers as data passes them. Without a seed the order of the ranks.
std::vector<int> nki_ring_order(NkiOptions const& options);

/// Runs one kernel on all ranks of a ring and gathers what it returns into `results`, which hold output and lse when
/// the backward kernel runs. Of several rings that run side by side it is the last.
NkiRun run_nki(NkiProblem const& problem, NkiKernel const& kernel, std::vector<int> const& ring_order,
               Inputs<float> const& inputs, Results<float>& results);

}  // namespace annulus_command
