#pragma once
// Use of MPI: inclusion of mpi.h, and errors of its calls as CommunicationError.

// The C++ bindings, which MPI 3 removed, would require another library at link time.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <cstddef>
#include <string>

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

}  // namespace annulus::detail
