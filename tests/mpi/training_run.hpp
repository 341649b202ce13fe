#pragma once
// Training runs over MPI, compiled once for all programs that make them.

#include <annulus/comm/mpi.hpp>

#include "faults/training_run.hpp"

namespace annulus_test {

extern template RankReport run_training(annulus::MpiRing&, Scenario const&, RunContext const&);

}  // namespace annulus_test
