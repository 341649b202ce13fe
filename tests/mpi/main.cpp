// Runs the tests of this folder on every rank of MPI_COMM_WORLD; all ranks return failure if one of them failed.
// Rank 0 reports to the terminal; what the others report is printed where something failed.

#include <mpi.h>

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
using ListenerBase = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
using ListenerBase = Catch::TestEventListenerBase;
#endif

#include <algorithm>
#include <chrono>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>

namespace {

// How long a rank whose test failed waits for the others, which may sit in an exchange that it left.
constexpr std::chrono::seconds patience{20};

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

// Apart from MPI_COMM_WORLD, whose collectives belong to the tests.
MPI_Comm meeting_point = MPI_COMM_NULL;

// The ranks meet after each pass through a test case: a rank that failed half way would else run the next pass
// against ranks that still exchange in this one.
class MeetAfterEachPass : public ListenerBase {
 public:
  using ListenerBase::ListenerBase;

  void sectionStarting(Catch::SectionInfo const& section) override {
    ListenerBase::sectionStarting(section);
    ++depth_;
  }

  void sectionEnded(Catch::SectionStats const& statistics) override {
    --depth_;
    if (depth_ == 0) meet(statistics.assertions.failed > 0);
    ListenerBase::sectionEnded(statistics);
  }

 private:
  static void meet(bool failed) {
    MPI_Request barrier = MPI_REQUEST_NULL;
    MPI_Ibarrier(meeting_point, &barrier);
    auto const deadline = std::chrono::steady_clock::now() + patience;
    for (int arrived = 0; arrived == 0;) {
      MPI_Test(&barrier, &arrived, MPI_STATUS_IGNORE);
      if (arrived != 0) break;
      if (failed && std::chrono::steady_clock::now() > deadline) {
        rank_output->print();
        std::cerr << "rank " + std::to_string(world_rank()) +
                         " failed a test that other ranks did not leave: ending all ranks\n"
                  << std::flush;
        MPI_Abort(MPI_COMM_WORLD, 1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds{200});
    }
  }

  int depth_ = 0;
};

}  // namespace

CATCH_REGISTER_LISTENER(MeetAfterEachPass)

int main(int argc, char** argv) {
  int provided = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_dup(MPI_COMM_WORLD, &meeting_point);
  int worst = 0;
  {
    RankOutput output;
    rank_output = &output;
    int own = Catch::Session().run(argc, argv);
    if (own == 0 && provided < MPI_THREAD_MULTIPLE) {
      std::cerr << "MPI_THREAD_MULTIPLE was asked, thread level " << provided << " was given\n";
      own = 1;
    }
    MPI_Allreduce(&own, &worst, 1, MPI_INT, MPI_MAX, meeting_point);
    if (own != 0) output.print();
  }
  MPI_Comm_free(&meeting_point);
  MPI_Finalize();
  return std::min(worst, 255);
}
