// Fault matrix of tests/faults/simulated_matrix_test.cpp on rings over MPI, except ranks that die, which end the job
// (see lost_process). A run that hangs is ended by an alarm, and the job with it.

#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <annulus/comm/mpi.hpp>
#include <cstddef>
#include <vector>

#include "faults/faultless_runs.hpp"
#include "faults/scenarios.hpp"
#include "faults/verdict.hpp"
#include "mpi/mpi_runner.hpp"
#include "mpi/training_run.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::ZeroCopy;

namespace {

/// Number of ranks that form the ring: at most five.
int ring_size() { return std::min(world_size(), 5); }

/// Reports of the ranks of the ring, on all ranks of the world.
std::vector<RankReport> run(Scenario const& scenario, RunContext const& context) {
  alarm(120);
  // Never freed: MPI is finalized before statics are destroyed.
  static auto const& part = *new ScopedCommunicator(ScopedCommunicator::of_first(ring_size()));
  RankReport report;
  if (part.get() != MPI_COMM_NULL) {
    annulus::MpiRing ring(part.get(), {.timeout = scenario.deadline, .zero_copy = scenario.zero_copy});
    report = run_training(ring, scenario, context);
  }
  std::vector<RankReport> all(static_cast<std::size_t>(world_size()));
  MPI_Allgather(&report, sizeof report, MPI_BYTE, all.data(), sizeof report, MPI_BYTE, MPI_COMM_WORLD);
  alarm(0);
  all.resize(static_cast<std::size_t>(scenario.ranks));
  return all;
}

struct Outcome {
  std::vector<RankReport> ranks;  ///< of all ranks
  Results results;                ///< of this rank
};

Outcome run_faultless(Scenario const& scenario) {
  Outcome outcome;
  outcome.ranks = run(scenario, {.obtained = &outcome.results});
  return outcome;
}

/// Runs every `stride`-th scenario; of these, only every `deadline_stride`-th of those that last until a deadline.
void check_every(std::size_t stride, std::size_t deadline_stride) {
  int const ranks = ring_size();
  if (ranks < 2) return;
  FaultlessRuns<run_faultless> faultless;
  Verdicts verdicts;
  std::size_t deadlines = 0;
  for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::automatic})
    for (Scenario const& scenario :
         sample_of(scenarios_of(ranks, zero_copy, [&](Scenario const& s) { return faultless.of(s).ranks[0].counts; }),
                   stride)) {
      if (scenario.fault.kind == FaultKind::die) continue;
      if (ends_by_deadline(scenario.fault.kind) && deadlines++ % deadline_stride != 0) continue;
      Outcome const& expected = faultless.of(scenario);
      verdicts.judge(scenario, run(scenario, {.expected = &expected.results}), false);
      for (RankReport const& report : run(scenario.without_fault(), {.expected = &expected.results}))
        if (report.end != RankReport::returned || !report.right)
          verdicts.complain(scenario, "a new ring does not work", report.text.data());
    }
  std::string const text = verdicts.text();
  INFO(text);
  CHECK(verdicts.all_right());
  CHECK(verdicts.runs() > 20);
}

}  // namespace

TEST_CASE("a sample of the faults of a ring over MPI", "[mpi][faults]") {
  check_every(world_size() == 2 ? 29 : world_size() == 3 ? 61 : 151, 3);
}

TEST_CASE("every fault of a ring over MPI", "[mpi][faults][.long]") { check_every(1, 5); }
