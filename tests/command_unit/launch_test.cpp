// Detection of the launcher of a process from environment variables.

#include "command/launch.hpp"
#include "support/catch.hpp"

#include <map>
#include <string>

using namespace annulus_command;

namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Launch> launch_in(Variables const& variables) {
  return launch_of([&](char const* name) {
    auto const found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("each launcher gives the number of processes and the rank", "[command]") {
  auto const [processes, rank] =
      GENERATE(std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
               std::pair{"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"}, std::pair{"PMI_SIZE", "PMI_RANK"},
               std::pair{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"});
  auto const launch = launch_in({{processes, "4"}, {rank, "3"}});
  REQUIRE(launch);
  CHECK(launch->processes == 4);
  CHECK(launch->rank == 3);
  CHECK(started(*launch) == "4 processes were started (" + std::string(processes) + ")");
}

TEST_CASE("a batch script with many tasks allotted is one process", "[command]") {
  CHECK(!launch_in({}));
  CHECK(!launch_in({{"SLURM_NTASKS", "8"}, {"SLURM_NPROCS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "17"}}));
}

TEST_CASE("an MPI launcher takes precedence over the srun that started it", "[command]") {
  auto const launch = launch_in({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}, {"PMI_SIZE", "1"}});
  REQUIRE(launch);
  CHECK(launch->processes == 1);
  CHECK(launch->rank == 0);
}

TEST_CASE("variables that are not numbers are ignored", "[command]") {
  CHECK(!launch_in({{"PMI_SIZE", ""}, {"OMPI_COMM_WORLD_SIZE", "many"}}));
}
