#pragma once
// The processes of an MPI job as seen by the command. In a build without MPI there is only the interface.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <span>

#include "collectives.hpp"

namespace annulus_command {

/// What becomes of work on rank 0 when another rank is lost meanwhile.
enum class WhenLost {
  end_at_once,  ///< it is given up where it stands
  finish_first  ///< it is finished, because it leaves traces on the disk while it runs
};

/// MPI from its start to its end. Nothing that the ranks do together waits for longer than the timeout: where a rank is
/// lost or late, one of the others prints a line that names it, and all processes end through MPI_Abort.
class MpiSession {
 public:
  /// `rank`: of this process as far as it is known before MPI has started. Throws InputError in a build without MPI.
  MpiSession(int& argc, char**& argv, std::chrono::milliseconds timeout, int rank);
  MpiSession(MpiSession const&) = delete;
  MpiSession& operator=(MpiSession const&) = delete;
  ~MpiSession();

  Collectives& ranks();

  /// Runs `work` on rank 0, for as long as it takes, then agrees. Called by all ranks, which show each other meanwhile
  /// that they are alive: `work` runs on a thread of its own, and must call no member.
  void on_first(std::function<void()> const& work, WhenLost when_lost);

  /// Runs `function`, called by all ranks, then ends MPI; called once. Returns the exit status. Endings on which the
  /// ranks agreed are printed by rank 0; any other exception ends all processes.
  int run(std::function<int()> const& function);

 private:
  /// Finds out who reports a failure, and does so where it is this rank. Only the first call does anything.
  void report(std::exception_ptr const& error);
  /// Ends all processes after a failure, which it reports where that has not been done.
  [[noreturn]] void end_all(std::exception_ptr const& error);

  struct Mpi;
  std::unique_ptr<Mpi> mpi_;
};

/// Does the command line ask for `--comm mpi`? Known before the options are checked, so that a process whose options
/// are bad still meets the others.
bool asks_for_mpi(std::span<char* const> arguments);

/// Whether processes started by the launcher that sets this variable of the environment can start MPI together.
bool starts_mpi(std::string_view variable);

}  // namespace annulus_command
