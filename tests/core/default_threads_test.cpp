// Default number of threads of a rank.

#include <algorithm>
#include <annulus/core/default_threads.hpp>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

using Variables = std::vector<std::pair<char const*, char const*>>;

/// For its lifetime, of the variables that launchers set, exactly the given ones are set.
class LauncherEnvironment {
 public:
  explicit LauncherEnvironment(Variables const& variables) {
    for (char const* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE",
                             "PMI_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", "SLURM_CPUS_ON_NODE"}) {
      char const* const value = std::getenv(name);
      before_.emplace_back(name, value ? std::optional<std::string>(value) : std::nullopt);
      ::unsetenv(name);
    }
    for (auto const& [name, value] : variables) ::setenv(name, value, 1);
  }
  LauncherEnvironment(LauncherEnvironment const&) = delete;
  LauncherEnvironment& operator=(LauncherEnvironment const&) = delete;
  ~LauncherEnvironment() {
    for (auto const& [name, value] : before_)
      if (value)
        ::setenv(name, value->c_str(), 1);
      else
        ::unsetenv(name);
  }

 private:
  std::vector<std::pair<char const*, std::optional<std::string>>> before_;
};

int ranks_with(Variables const& variables) {
  LauncherEnvironment const environment(variables);
  return detail::ranks_of_node();
}

int threads_with(Variables const& variables) {
  LauncherEnvironment const environment(variables);
  return default_threads();
}

}  // namespace

TEST_CASE("the launcher's environment states the ranks of the node", "[core]") {
  CHECK(ranks_with({}) == 1);
  CHECK(ranks_with({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}) == 4);
  CHECK(ranks_with({{"MPI_LOCALNRANKS", "3"}}) == 3);
  CHECK(ranks_with({{"MV2_COMM_WORLD_LOCAL_SIZE", "12"}}) == 12);
  CHECK(ranks_with({{"PMI_LOCAL_SIZE", "2"}}) == 2);
  for (char const* bad : {"", "many", "0", "-4"}) CHECK(ranks_with({{"OMPI_COMM_WORLD_LOCAL_SIZE", bad}}) == 1);
}

TEST_CASE("srun states the ranks of each node", "[core]") {
  auto const of_node = [](char const* node) {
    return ranks_with({{"SLURM_STEP_TASKS_PER_NODE", "4(x2),3,2(x10)"}, {"SLURM_NODEID", node}});
  };
  CHECK(of_node("0") == 4);
  CHECK(of_node("1") == 4);
  CHECK(of_node("2") == 3);
  CHECK(of_node("3") == 2);
  CHECK(of_node("12") == 2);
  CHECK(of_node("13") == 1);
  CHECK(ranks_with({{"SLURM_STEP_TASKS_PER_NODE", "8"}}) == 8);
  CHECK(ranks_with({{"SLURM_STEP_TASKS_PER_NODE", "(x2"}}) == 1);
  // srun has started the daemon of mpirun, one on each node.
  CHECK(ranks_with({{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "6"}}) == 6);
}

TEST_CASE("by default the ranks of a node divide its cores", "[core]") {
  int const mine = detail::cores_of_process(0), node = std::max(mine, detail::cores_of_process(1));
  CHECK(mine >= 1);
  CHECK(threads_with({}) == mine);
  CHECK(threads_with({{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}) == mine);
  CHECK(threads_with({{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}) == std::clamp(node / 2, 1, mine));
  CHECK(threads_with({{"OMPI_COMM_WORLD_LOCAL_SIZE", "100000"}}) == 1);
  CHECK(threads_with({{"SLURM_CPUS_ON_NODE", "1"}}) == 1);
  // A rank that is bound to its own cores keeps them all.
  CHECK(threads_with({{"SLURM_CPUS_ON_NODE", "100000"}, {"SLURM_STEP_TASKS_PER_NODE", "2"}}) == mine);
}
