#pragma once
// run_ring for MPI: the same function, on the processes that mpirun started.

#include <exception>
#include <utility>

#include "annulus/comm/mpi.hpp"

namespace annulus {

namespace detail {

/// MPI from the first use to the end of the program, unless the program has started it itself.
class MpiSession {
 public:
  static void require() { static MpiSession const session; }

  MpiSession(MpiSession const&) = delete;
  MpiSession& operator=(MpiSession const&) = delete;

 private:
  MpiSession() {
    int running = 0, provided = 0;
    check_mpi(MPI_Initialized(&running), "MPI_Initialized");
    if (running) return;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    started_ = true;
  }
  ~MpiSession() {
    int ended = 0;
    if (started_ && MPI_Finalized(&ended) == MPI_SUCCESS && !ended) MPI_Finalize();
  }

  bool started_ = false;
};

}  // namespace detail

/// Runs function(ring) on this process as one rank of MPI_COMM_WORLD, and returns what it returns. Unless the program
/// has started MPI, the first call starts it and the end of the program ends it. Errors: those of MpiRing; an exception
/// of the function passes through, and the other ranks get a CommunicationError.
template <class Function>
decltype(auto) run_mpi_ring(Function&& function, MpiRingOptions const& options = {}) {
  detail::MpiSession::require();
  MpiRing ring(MPI_COMM_WORLD, options);
  try {
    return std::forward<Function>(function)(ring);
  } catch (std::exception const& error) {
    ring.abandon(error.what());
    throw;
  }
}

}  // namespace annulus
