#include "mpi/training_run.hpp"

namespace annulus_test {

template RankReport run_training(annulus::MpiRing&, Scenario const&, RunContext const&);

}  // namespace annulus_test
