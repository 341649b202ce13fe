#pragma once
// `annulus nki`: ring attention as Trainium kernels, printed, simulated and costed.

#include "nki_options.hpp"

namespace annulus_command {

/// Builds and validates the kernels, simulates or costs them, and only then writes. Throws what exit_status.hpp knows;
/// std::runtime_error where a simulated kernel is further from the reference than its rounding explains.
void run_nki_command(NkiOptions const& options);

}  // namespace annulus_command
