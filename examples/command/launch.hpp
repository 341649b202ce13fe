#pragma once
// Detection of a parallel launch (mpirun, mpiexec, srun) from environment variables.

#include <optional>
#include <string>
#include <string_view>

#include "number_check.hpp"

namespace annulus_command {

/// A launch of several processes, of which this is one.
struct Launch {
  std::string_view variable;  ///< environment variable that holds the number of processes
  int processes = 1;
  int rank = 0;  ///< of this process; 0 if the environment does not tell
};

/// The launch of this process, from the first variable that is set; empty if none is. environment(name) returns the
/// value of a variable, or null.
///
/// Each variable is set only for the processes of a job. SLURM_NTASKS and SLURM_PROCID alone do not count: a batch
/// script has them and is one process. MPI launchers come before srun, which may have started them.
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
