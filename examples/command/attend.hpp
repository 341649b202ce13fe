#pragma once
// The `annulus attend` subcommand: ring attention over tensors in .npy files.

#include "attend_options.hpp"
#include "mpi_session.hpp"

namespace annulus_command {

/// Reads and checks all files, computes, and then writes the results. session: null for simulated ranks; otherwise the
/// call is collective and rank 0 reads and writes. Throws the errors that ending_of (exit_status.hpp) handles.
void run_attend(AttendOptions const& options, MpiSession* session);

}  // namespace annulus_command
