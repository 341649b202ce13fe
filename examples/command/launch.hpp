#pragma once
// The processes that a launcher (mpirun, mpiexec, srun) started together with this one, as told by the environment.

#include <optional>
#include <string>
#include <string_view>

#include "number_check.hpp"

namespace annulus_command {

struct Launch {
  std::string_view variable;  ///< of the environment, that names the number of processes
  int processes = 1;
  int rank = 0;  ///< of this process; 0 where the environment does not say
};

/// The launch of this process, by the first variable that is set. environment(name) returns the value of a variable, or
/// null. Empty where no launcher is known.
///
/// Each variable is set for the processes of a job alone. SLURM_NTASKS and SLURM_PROCID are not asked by themselves: a
/// batch script has them, and is one process. A launcher of MPI is asked before srun, which may have started it.
template <class Environment>
std::optional<Launch> launch_of(Environment&& environment) {
  struct Variables {
    char const *processes, *rank;
  };
  constexpr Variables known[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},  // Open MPI
      {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},    // MVAPICH2
      {"PMI_SIZE", "PMI_RANK"},                          // Hydra: MPICH, Intel MPI
      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},          // srun
  };
  auto const number = [&](char const* name, int& value) {
    char const* const text = environment(name);
    return text && is_whole_number(std::string_view(text), value);
  };
  for (Variables const& variables : known) {
    Launch launch{.variable = variables.processes};
    if (!number(variables.processes, launch.processes)) continue;
    if (!number(variables.rank, launch.rank)) launch.rank = 0;
    return launch;
  }
  return std::nullopt;
}

/// "4 processes were started (PMI_SIZE)".
inline std::string started(Launch const& launch) {
  return std::to_string(launch.processes) + " processes were started (" + std::string(launch.variable) + ")";
}

}  // namespace annulus_command
