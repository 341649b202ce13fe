#include "mpi_session.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <string_view>
#include <thread>

#include "exit_status.hpp"
#include "mpi_roll_call.hpp"
#include "reporting_ring.hpp"
#include "watchdog.hpp"

#if ANNULUS_COMMAND_HAS_MPI
#include <annulus/comm/mpi.hpp>
#endif

namespace annulus_command {

bool asks_for_mpi(std::span<char* const> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view const argument = arguments[i];
    if (argument == "--comm=mpi") return true;
    if (argument == "--comm" && i + 1 < arguments.size() && std::string_view(arguments[i + 1]) == "mpi") return true;
  }
  return false;
}

#if ANNULUS_COMMAND_HAS_MPI

namespace {

using std::chrono::milliseconds;

/// Time that the ranks have to answer each other after a failure of the ring.
constexpr milliseconds roll_call_time(1000);

/// Time that a launcher takes to end the other processes once one has failed.
constexpr milliseconds launcher_time(2000);

/// Watchdog for an MPI call without a deadline. The limit grows with the rank, so that the lowest remaining rank
/// reports first and thereby ends the others.
Watchdog watch(char const* call, milliseconds timeout, int rank) {
  milliseconds const limit = timeout + roll_call_time + rank * launcher_time;
  return Watchdog(limit, "rank " + std::to_string(rank) + ": " + call + " has not returned within " +
                             std::to_string(limit.count()) + " ms: a process of the job is late or lost");
}

/// State of the work on rank 0, sent to the other ranks.
enum class Work : char { pending, done };

Reason reason_of(std::exception_ptr const& error) {
  Reason reason{.ending = ending_of(error)};
  try {
    std::rethrow_exception(error);
  } catch (annulus::CommunicationError const&) {
  } catch (...) {
    reason.is_cause = true;
  }
  return reason;
}

}  // namespace

bool starts_mpi(std::string_view variable) {
#ifdef OPEN_MPI
  return variable == "OMPI_COMM_WORLD_SIZE";
#else
  return variable == "PMI_SIZE" || variable == "MV2_COMM_WORLD_SIZE";
#endif
}

struct MpiSession::Mpi {
  explicit Mpi(milliseconds limit) : timeout(limit) {}

  void print_report() {
    has_reported = true;
    std::fprintf(stderr, "annulus: %s\n", roll_call->ending().line.c_str());
  }

  milliseconds timeout;
  std::optional<annulus::MpiRing> ring;
  std::optional<ReportingRing<annulus::MpiRing>> reporting;
  std::optional<Collectives> ranks;
  std::optional<MpiRollCall> roll_call;
  bool has_reported = false;
};

MpiSession::MpiSession(int& argc, char**& argv, milliseconds timeout, int rank) : mpi_(std::make_unique<Mpi>(timeout)) {
  {
    Watchdog const watchdog = watch("MPI_Init", timeout, rank);
    int provided = 0;
    annulus::detail::check_mpi(MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  }
  try {
    Watchdog const watchdog = watch("MPI_Comm_dup", timeout, annulus::detail::mpi_rank(MPI_COMM_WORLD));
    mpi_->ring.emplace(MPI_COMM_WORLD, annulus::MpiRingOptions{.timeout = timeout});
    mpi_->reporting.emplace(*mpi_->ring, [this] { report(std::current_exception()); });
    mpi_->ranks.emplace(AnyRing(*mpi_->reporting));
  } catch (...) {
    end_all(std::current_exception());
  }
}

MpiSession::~MpiSession() = default;

Collectives& MpiSession::ranks() { return *mpi_->ranks; }

void MpiSession::on_first(std::function<void()> const& work, WhenLost when_lost) {
  milliseconds const period = std::clamp(mpi_->timeout / 4, milliseconds(1), milliseconds(1000));
  std::exception_ptr error;
  if (ranks().rank() != 0) {
    while (ranks().from_first(Work{}) == Work::pending) {
    }
  } else {
    std::future<void> working = std::async(std::launch::async, work);
    try {
      auto const state = [&] {
        return working.wait_for(period) == std::future_status::ready ? Work::done : Work::pending;
      };
      while (ranks().from_first(state()) == Work::pending) {
      }
    } catch (annulus::CommunicationError const&) {
      if (when_lost == WhenLost::end_at_once) end_all(std::current_exception());
      working.wait();
      throw;
    }
    try {
      working.get();
    } catch (...) {
      error = std::current_exception();
    }
  }
  ranks().agree(error);
}

int MpiSession::run(std::function<int()> const& function) {
  Ending ending;
  try {
    try {
      ending.status = static_cast<ExitStatus>(function());
    } catch (AgreedEnding const&) {
      ending = ending_of(std::current_exception());
    }
    ranks().barrier();
  } catch (...) {
    end_all(std::current_exception());
  }
  int const rank = ranks().rank();
  if (rank == 0 && !ending.line.empty()) std::fprintf(stderr, "annulus: %s\n", ending.text());
  Watchdog const watchdog = watch("MPI_Finalize", mpi_->timeout, rank);
  mpi_->ranks.reset();
  mpi_->reporting.reset();
  mpi_->ring.reset();
  MPI_Finalize();
  return ending.status;
}

void MpiSession::report(std::exception_ptr const& error) {
  if (mpi_->roll_call) return;
  Reason const reason = reason_of(error);
  // Ranks that wait for this one fail now.
  if (mpi_->ring) mpi_->ring->abandon(reason.ending.line);
  mpi_->roll_call.emplace(reason);
  mpi_->roll_call->await(roll_call_time);
  if (mpi_->roll_call->speaks()) mpi_->print_report();
}

void MpiSession::end_all(std::exception_ptr const& error) {
  report(error);
  // The rank that reports ends the others, unless it is lost as well.
  if (!mpi_->has_reported) {
    std::this_thread::sleep_for(mpi_->timeout);
    mpi_->print_report();
  }
  int const status = mpi_->roll_call->ending().status;
  std::fflush(stdout);
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

#else

bool starts_mpi(std::string_view) { return false; }

struct MpiSession::Mpi {};

MpiSession::MpiSession(int&, char**&, std::chrono::milliseconds, int) {
  throw InputError("--comm mpi: this build of the command has no MPI; accepted: sim");
}
MpiSession::~MpiSession() = default;
// Never called, since the constructor throws.
Collectives& MpiSession::ranks() { std::abort(); }
void MpiSession::on_first(std::function<void()> const&, WhenLost) { std::abort(); }
int MpiSession::run(std::function<int()> const&) { std::abort(); }
void MpiSession::report(std::exception_ptr const&) { std::abort(); }
void MpiSession::end_all(std::exception_ptr const&) { std::abort(); }

#endif

}  // namespace annulus_command
