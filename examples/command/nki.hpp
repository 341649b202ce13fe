#pragma once
// `annulus nki`: ring attention as Trainium kernels, printed, simulated and costed.

#include "nki_options.hpp"

namespace annulus_command {

/// Builds and validates the kernels, simulates or costs them, and then writes the files. Throws the errors that
/// ending_of (exit_status.hpp) handles; std::runtime_error if a simulated kernel exceeds its accepted error.
void run_nki_command(NkiOptions const& options);

}  // namespace annulus_command
