#pragma once
// MPI session of the command: start, work on rank 0, error reports and end. A build without MPI has only the interface.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "collectives.hpp"

namespace annulus_command {

/// Treatment of work on rank 0 if another rank is lost while it runs.
enum class WhenLost {
  end_at_once,  ///< the work is abandoned
  finish_first  ///< the work is finished, because it writes to the disk
};

/// Owns MPI from MPI_Init to MPI_Finalize. No collective operation waits longer than the timeout: if a rank is lost or
/// late, another one prints a line that names it, and all processes end through MPI_Abort.
class MpiSession {
 public:
  /// rank: of this process as told by the launcher, for messages before MPI has started. Throws InputError in a build
  /// without MPI.
  MpiSession(int& argc, char**& argv, std::chrono::milliseconds timeout, int rank);
  MpiSession(MpiSession const&) = delete;
  MpiSession& operator=(MpiSession const&) = delete;
  ~MpiSession();

  Collectives& ranks();

  /// Runs `work` on rank 0 without a time limit, then all ranks agree on its error. Collective: the ranks exchange
  /// messages meanwhile to notice a lost one. `work` runs on a separate thread and must not call members.
  void on_first(std::function<void()> const& work, WhenLost when_lost);

  /// Runs `function` on this rank, then finalizes MPI. Collective, called once. Returns the exit status. Rank 0 prints
  /// endings on which the ranks agreed; any other exception ends all processes.
  int run(std::function<int()> const& function);

 private:
  /// Determines which rank reports a failure, and reports it if it is this one. Only the first call has an effect.
  void report(std::exception_ptr const& error);
  /// Reports the failure if that has not been done, then ends all processes.
  [[noreturn]] void end_all(std::exception_ptr const& error);

  struct Mpi;
  std::unique_ptr<Mpi> mpi_;
};

/// True if the arguments contain `--comm mpi`. Checked before the options are parsed, so that a process with bad
/// options still joins the others.
bool asks_for_mpi(std::span<char* const> arguments);

/// True if the launcher that sets this environment variable can start the MPI that the command was built with.
bool starts_mpi(std::string_view variable);

}  // namespace annulus_command
