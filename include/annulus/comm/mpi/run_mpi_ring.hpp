#pragma once
// run_ring for MPI: the same function, on the processes that mpirun started.

#include <utility>

#include "annulus/comm/mpi.hpp"

namespace annulus {

namespace detail {

/// MPI for as long as this object lives, unless the program had started it before.
class MpiSession {
 public:
  MpiSession() {
    int running = 0, provided = 0;
    check_mpi(MPI_Initialized(&running), "MPI_Initialized");
    if (running) return;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
    started_ = true;
  }
  ~MpiSession() {
    if (started_) MPI_Finalize();
  }
  MpiSession(MpiSession const&) = delete;
  MpiSession& operator=(MpiSession const&) = delete;

 private:
  bool started_ = false;
};

}  // namespace detail

/// Runs function(ring) on this process as one rank of MPI_COMM_WORLD, and returns what it returns. Starts MPI before and
/// ends it after, unless the program has started it. Errors: those of MpiRing; an exception of the function passes
/// through, and the other ranks get a CommunicationError.
template <class Function>
decltype(auto) run_mpi_ring(Function&& function, MpiRingOptions const& options = {}) {
  detail::MpiSession const session;
  MpiRing ring(MPI_COMM_WORLD, options);
  return std::forward<Function>(function)(ring);
}

}  // namespace annulus
