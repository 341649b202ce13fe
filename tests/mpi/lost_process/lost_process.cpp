// Program that loses one process of a ring over MPI in the middle of a pass. Arguments:
// die|stop <place> <number> <culprit> never|automatic. The other processes report how they ended, one line each, and
// end the job.

#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "mpi/training_run.hpp"

int main(int argc, char** argv) {
  using namespace annulus_test;
  if (argc != 6) return 2;
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Scenario scenario{.ranks = ranks, .deadline = std::chrono::milliseconds(1500)};
  if (std::string(argv[5]) == "automatic") scenario.zero_copy = annulus::ZeroCopy::automatic;
  scenario.fault = {FaultKind::die, std::atoi(argv[4]), Place::prefetched, std::atoi(argv[3])};
  for (Place place : {Place::prefetched, Place::carried, Place::reduction, Place::all_gather, Place::compute})
    if (name_of(place) == argv[2]) scenario.fault.place = place;
  bool const stops = std::string(argv[1]) == "stop";

  RankReport report;
  {
    annulus::MpiRing ring(MPI_COMM_WORLD, {.timeout = scenario.deadline, .zero_copy = scenario.zero_copy});
    report = run_training(ring, scenario, {.die = [&] {
                            std::printf("process %d of rank %d is lost\n", static_cast<int>(getpid()), rank);
                            std::fflush(stdout);
                            if (stops) raise(SIGSTOP);
                            _exit(9);  // also if the launcher continues the stopped process to end it
                          }});
  }
  std::printf("rank %d: end %d, neighbour %d, %.3f s: %s\n", rank, static_cast<int>(report.end), report.neighbour,
              report.seconds, report.text.data());
  std::fflush(stdout);
  // Time for the others to report, which may take a second more: the first process that ends without MPI_Finalize ends
  // the job.
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  _exit(7);
}
