#pragma once
// Use of MPI: inclusion of mpi.h, errors of its calls as CommunicationError, and the pauses of a rank that polls.

// The C++ bindings, which MPI 3 removed, would require another library at link time.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"

namespace annulus::detail {

inline std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return message_of("MPI error ", code);
  return {text, static_cast<std::size_t>(length)};
}

/// Throws CommunicationError unless `code`, which `call` returned, is MPI_SUCCESS.
inline void check_mpi(int code, char const* call, Rank rank = CommunicationError::unknown,
                      Rank neighbour = CommunicationError::unknown) {
  if (code != MPI_SUCCESS)
    throw CommunicationError(message_of(call, " failed: ", mpi_error_text(code)), rank, CommunicationError::unknown,
                             neighbour);
}

/// True between MPI_Init and MPI_Finalize.
inline bool mpi_is_running() {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

inline Rank mpi_rank(MPI_Comm communicator) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  return rank;
}

inline int mpi_size(MPI_Comm communicator) {
  int size = 0;
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  return size;
}

/// Pauses between polls of one wait, until a deadline. Spins first, then yields, because ranks may outnumber cores, and
/// sleeps after a while, so that a rank that waits for long leaves its core to others.
class PollingTimer {
 public:
  using Clock = std::chrono::steady_clock;

  /// The polled medium. Shared memory changes without this rank's help; messages advance only while their receiver
  /// polls, so a rank that waits for messages starts to sleep later and sleeps for shorter times.
  enum class Of { shared_memory, messages };

  explicit PollingTimer(Of what) : what_(what) {}

  /// Pauses before the next poll.
  void pause() {
    constexpr int spins = 16, yields_between_clock_reads = 64;
    if (++polls_ <= spins) return;
    if (sleep_.count() == 0) {
      std::this_thread::yield();
      if (polls_ % yields_between_clock_reads != 0) return;
    } else {
      std::this_thread::sleep_for(sleep_);
    }
    using namespace std::chrono_literals;
    auto const waited = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_);
    if (what_ == Of::messages)
      sleep_ = waited < 1s ? 0us : 100us;
    else
      sleep_ = waited < 5ms ? 0us : std::min<std::chrono::microseconds>(waited / 64, 1ms);
  }

  Clock::time_point start() const { return start_; }
  bool exceeds(std::chrono::milliseconds limit) const { return exceeds(start_, limit); }

  /// True if `limit` has passed since `begin`.
  static bool exceeds(Clock::time_point begin, std::chrono::milliseconds limit) {
    // Compares in milliseconds: a limit of milliseconds::max() would overflow the clock's own unit.
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin) >= limit;
  }

 private:
  Of what_;
  Clock::time_point start_ = Clock::now();
  std::chrono::microseconds sleep_{0};
  int polls_ = 0;
};

}  // namespace annulus::detail
