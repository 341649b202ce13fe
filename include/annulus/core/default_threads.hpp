#pragma once
// Default number of threads of a rank: the cores of its node, divided by the ranks that the launcher started there.

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace annulus {

namespace detail {

/// Number of cores that a process is bound to; of all cores where no binding is known. process 0: this one.
inline int cores_of_process([[maybe_unused]] int process) {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(process, sizeof cores, &cores) == 0) return CPU_COUNT(&cores);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

/// Entry `index` of a list of numbers as Slurm writes it: "4(x2),3" is 4, 4, 3. 0 if there is no such entry.
inline int entry_of(std::string_view list, int index) {
  auto const number = [](std::string_view text) {
    int value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return std::max(value, 0);
  };
  while (!list.empty()) {
    std::string_view const part = list.substr(0, list.find(','));
    std::size_t const repeated = part.find("(x");
    int const times = repeated == list.npos ? 1 : number(part.substr(repeated + 2));
    if (index < times) return number(part);
    index -= times;
    list.remove_prefix(std::min(part.size() + 1, list.size()));
  }
  return 0;
}

/// An environment variable, as entry_of(its value, index); 0 if it is not set.
inline int number_in_environment(char const* variable, int index = 0) {
  char const* const value = std::getenv(variable);
  return value ? entry_of(value, index) : 0;
}

/// Number of ranks that the launcher of this process has started on its node, as its environment states; 1 without a
/// launcher.
inline int ranks_of_node() {
  for (char const* variable : {"OMPI_COMM_WORLD_LOCAL_SIZE",  // Open MPI
                               "MPI_LOCALNRANKS",             // MPICH and Intel MPI
                               "MV2_COMM_WORLD_LOCAL_SIZE",   // MVAPICH2
                               "PMI_LOCAL_SIZE"})             // Cray PALS
    if (int const ranks = number_in_environment(variable); ranks > 0) return ranks;
  // Slurm last: where mpirun starts its daemons by srun, ranks inherit Slurm's variables, which count the daemons.
  return std::max(1, number_in_environment("SLURM_STEP_TASKS_PER_NODE", number_in_environment("SLURM_NODEID")));
}

/// Number of cores of the node that its ranks may use together: those of the Slurm job, otherwise the larger number to
/// which process 1, which is normally not bound, and this process are bound.
inline int cores_of_node() {
  int const allocated = number_in_environment("SLURM_CPUS_ON_NODE");
  return allocated > 0 ? allocated : std::max(cores_of_process(1), cores_of_process(0));
}

}  // namespace detail

/// Number of threads with which a rank computes by default: the cores of its node divided by the ranks there, but no
/// more than the cores that the process is bound to, and at least 1. A remainder stays idle: a ring is as fast as its
/// slowest rank. The number of ranks is that of the launcher's environment (mpirun of Open MPI, MPICH, Intel MPI and
/// MVAPICH2, PALS, srun), and 1 without one. MPI is not asked, so the result is the same before and after MPI_Init and
/// with every communicator. A rank that is to use another share of its node states it (CpuBackend::threads).
inline int default_threads() {
  return std::clamp(detail::cores_of_node() / detail::ranks_of_node(), 1, detail::cores_of_process(0));
}

}  // namespace annulus
