// Main program of the tests over MPI: runs them on every rank of MPI_COMM_WORLD; all ranks return failure if one of
// them failed. Rank 0 reports to the terminal; the output of another rank is printed only if that rank failed.

#include <mpi.h>

#if __has_include(<catch2/reporters/catch_reporter_registrars.hpp>)
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using ListenerBase = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <catch2/catch.hpp>
using ListenerBase = Catch::TestEventListenerBase;
#endif

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

#include "support/catch_runner.hpp"

namespace {

// The time that a rank whose test failed waits for the others, which may hang in an exchange that it left.
constexpr std::chrono::seconds barrier_timeout{20};

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// Standard output of the ranks above 0, kept until it is known whether it matters.
class RankOutput {
 public:
  RankOutput() {
    if (world_rank() > 0) terminal_ = std::cout.rdbuf(held_.rdbuf());
  }
  RankOutput(RankOutput const&) = delete;
  RankOutput& operator=(RankOutput const&) = delete;
  ~RankOutput() {
    if (terminal_ != nullptr) std::cout.rdbuf(terminal_);
  }

  // One write, so that the lines of several ranks do not mix.
  void print() {
    if (terminal_ == nullptr) return;
    std::cerr << "[rank " + std::to_string(world_rank()) + "]\n" + held_.str() << std::flush;
    held_.str({});
  }

 private:
  std::ostringstream held_;
  std::streambuf* terminal_ = nullptr;
};

RankOutput* rank_output = nullptr;

// Separate from MPI_COMM_WORLD, whose collectives belong to the tests.
MPI_Comm barrier_communicator = MPI_COMM_NULL;

// A barrier after each pass through a test case: without it a rank that failed half way would run the next pass while
// others still exchange in this one.
class BarrierAfterEachPass : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

  void sectionStarting(Catch::SectionInfo const& section) override {
    ListenerBase::sectionStarting(section);
    ++depth_;
  }

  void sectionEnded(Catch::SectionStats const& statistics) override {
    --depth_;
    if (depth_ == 0) wait_for_all(statistics.assertions.failed > 0);
    ListenerBase::sectionEnded(statistics);
  }

 private:
  static void wait_for_all(bool failed) {
    MPI_Request barrier = MPI_REQUEST_NULL;
    MPI_Ibarrier(barrier_communicator, &barrier);
    auto const deadline = std::chrono::steady_clock::now() + barrier_timeout;
    for (int arrived = 0; arrived == 0;) {
      MPI_Test(&barrier, &arrived, MPI_STATUS_IGNORE);
      if (arrived != 0) break;
      if (failed && std::chrono::steady_clock::now() > deadline) {
        rank_output->print();
        std::cerr << "rank " + std::to_string(world_rank()) +
                         " failed a test in which other ranks hang: ending all ranks\n"
                  << std::flush;
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
  }

  int depth_ = 0;
};

}  // namespace

CATCH_REGISTER_LISTENER(BarrierAfterEachPass)

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_dup(MPI_COMM_WORLD, &barrier_communicator);
  int worst = 0;
  {
    RankOutput output;
    rank_output = &output;
    int own = run_catch(argc, argv);
    if (own == 0 && provided < MPI_THREAD_MULTIPLE) {
      std::cerr << "the tests require MPI_THREAD_MULTIPLE, MPI provides thread level " << provided << '\n';
      own = 1;
    }
    MPI_Allreduce(&own, &worst, 1, MPI_INT, MPI_MAX, barrier_communicator);
    if (own != 0) output.print();
  }
  MPI_Comm_free(&barrier_communicator);
  MPI_Finalize();
  return std::min(worst, 255);
}
