#include "mpi_session.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "errors.hpp"

#if ANNULUS_COMMAND_HAS_MPI
#include <annulus/comm/mpi.hpp>
#include <annulus/comm/mpi/call.hpp>
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

/// Prints `line` and ends the process with status 1 if it exists for longer than `limit`; runs no destructors or exit
/// handlers, which could block again. Time in which the process is stopped does not count, so that a stopped process
/// does not blame the others once it is continued.
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds limit, std::string line)
      : thread_([limit, line = std::move(line)](std::stop_token const& ended) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          constexpr std::chrono::milliseconds interval(100);
          for (std::chrono::milliseconds left = limit; left.count() > 0; left -= interval) {
            never.wait_for(lock, ended, std::min(left, interval), [] { return false; });
            if (ended.stop_requested()) return;
          }
          std::fprintf(stderr, "annulus: %s\n", line.c_str());
          std::_Exit(failed);
        }) {}

 private:
  std::jthread thread_;
};

/// Why a rank ends.
struct Reason {
  Ending ending;
  bool is_cause = false;  ///< false: a failure of the communication, which another rank may have caused
};

/// Roll call of the ranks of a job after their ring has failed: which ranks still answer, and why each of them ends.
/// Constructed by each rank, at most once and shortly after the ring was closed on all ranks. A lost rank never does so
/// and is identified by its silence. Uses MPI directly, with messages that no rank has to wait for.
class MpiRollCall {
 public:
  explicit MpiRollCall(Reason const& mine)
      : rank_(annulus::detail::mpi_rank(world())),
        reasons_(static_cast<std::size_t>(annulus::detail::mpi_size(world()))),
        answer_{.status = mine.ending.status, .is_cause = mine.is_cause, .reports = false, .line = {}} {
    mine.ending.line.copy(answer_.line.data(), answer_.line.size() - 1);
    reasons_[static_cast<std::size_t>(rank_)] = mine;
    send(answer_);
  }
  MpiRollCall(MpiRollCall const&) = delete;
  MpiRollCall& operator=(MpiRollCall const&) = delete;

  /// Returns when all ranks have answered or `limit` has passed.
  void await(std::chrono::milliseconds limit) {
    auto const end = std::chrono::steady_clock::now() + limit;
    auto const complete = [this] { return std::ranges::all_of(reasons_, &std::optional<Reason>::has_value); };
    for (receive(); !complete() && std::chrono::steady_clock::now() < end; receive())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  /// The ending to report: the cause of the first rank that knows one, else this rank's own with the silent ranks.
  Ending ending() const {
    auto const cause = std::ranges::find_if(reasons_, [](auto const& reason) { return reason && reason->is_cause; });
    if (cause != reasons_.end()) {
      Ending const& ending = (*cause)->ending;
      return {ending.status, "rank " + std::to_string(cause - reasons_.begin()) + ": " + ending.line};
    }
    Ending ending = reasons_[static_cast<std::size_t>(rank_)]->ending;
    std::string silent;
    for (std::size_t rank = 0; rank < reasons_.size(); ++rank)
      if (!reasons_[rank]) silent += (silent.empty() ? "; no answer from rank " : ", ") + std::to_string(rank);
    ending.line += silent;
    return ending;
  }

  /// Waits to be ended by the rank that reports; returns after `limit`, or after `longer` if a rank has claimed the
  /// report.
  void await_end(std::chrono::milliseconds limit, std::chrono::milliseconds longer) {
    auto const begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < (another_reports_ ? longer : limit)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      receive();
    }
  }

  /// True if this rank reports the ending: no rank before it has answered, and no other has claimed it. Called once.
  bool speaks() {
    auto const first = std::ranges::find_if(reasons_, &std::optional<Reason>::has_value);
    if (another_reports_ || first - reasons_.begin() != rank_) return false;
    claim_ = answer_;
    claim_.reports = true;
    send(claim_);
    return true;
  }

 private:
  /// Short enough that MPI delivers it without action of the receiver.
  struct Message {
    int status;
    bool is_cause, reports;
    std::array<char, 1000> line;  ///< null-terminated
  };

  /// Carries only these messages, because the ring has a separate communicator.
  static MPI_Comm world() { return MPI_COMM_WORLD; }
  static constexpr int tag = 0;

  void send(Message const& message) {
    for (annulus::Rank rank = 0; rank < static_cast<annulus::Rank>(reasons_.size()); ++rank) {
      if (rank == rank_) continue;
      // The process ends with MPI_Abort, so no request needs to be completed.
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(&message, sizeof message, MPI_BYTE, rank, tag, world(), &request);
    }
  }

  /// Receives the answers that have arrived. Does not block.
  void receive() {
    for (;;) {
      int arrived = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, tag, world(), &arrived, &status) != MPI_SUCCESS || arrived == 0) return;
      Message message{};
      MPI_Recv(&message, sizeof message, MPI_BYTE, status.MPI_SOURCE, tag, world(), MPI_STATUS_IGNORE);
      another_reports_ = another_reports_ || message.reports;
      Ending const ending{static_cast<ExitStatus>(message.status), std::string(message.line.data())};
      reasons_[static_cast<std::size_t>(status.MPI_SOURCE)] = Reason{ending, message.is_cause};
    }
  }

  annulus::Rank rank_;
  std::vector<std::optional<Reason>> reasons_;  ///< by rank; empty until it answers
  Message answer_{}, claim_{};
  bool another_reports_ = false;
};

/// Time that the ranks have to answer each other after a failure of the ring.
constexpr milliseconds roll_call_time(1000);

/// Time that a launcher takes to end the other processes once one has failed.
constexpr milliseconds launcher_time(2000);

/// Watchdog for an MPI call without a deadline. The limit grows with the rank, so that the first remaining rank
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
    mpi_->ranks.emplace(AnyRing(*mpi_->ring, [this] { report(std::current_exception()); }));
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
    mpi_->roll_call->await_end(mpi_->timeout, mpi_->timeout + 5 * launcher_time);
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
