#pragma once
// README of an emitted folder: how to call the kernels, with any launcher.

#include <string>
#include <vector>

#include "nki_kernels.hpp"

namespace annulus_command {

/// The command line, with all options, that builds the same kernels without files: "annulus nki --ranks 4 ...".
std::string nki_command_line(NkiOptions const& options, NkiProblem const& problem);

/// The README, in Markdown. Depends only on the options.
std::string nki_readme(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels);

}  // namespace annulus_command
