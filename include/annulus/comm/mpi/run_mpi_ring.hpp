#pragma once
// run_mpi_ring, the counterpart of run_ring over MPI: runs a function on the processes that mpirun has started.

#include <exception>
#include <utility>

#include "annulus/comm/mpi.hpp"

namespace annulus {

namespace detail {

/// Initializes MPI at the first use and finalizes it when the program ends, unless the program has initialized it.
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
/// has initialized MPI, the first call does so, and MPI is finalized when the program ends. Throws what the constructor
/// of MpiRing throws; rethrows an exception of the function, upon which the other ranks throw CommunicationError.
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
