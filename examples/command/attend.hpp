#pragma once
// `annulus attend`: files in, ring attention, files out.

#include "attend_options.hpp"
#include "mpi_session.hpp"

namespace annulus_command {

/// Reads and checks everything, computes, and only then writes. With a session all its ranks call it, and rank 0 reads
/// and writes; null: simulated ranks. Throws what exit_status.hpp knows.
void run_attend(AttendOptions const& options, MpiSession* session);

}  // namespace annulus_command
