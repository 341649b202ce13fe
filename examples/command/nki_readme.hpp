#pragma once
// The README of an emitted folder: how to call the kernels, whatever launches them.

#include <string>
#include <vector>

#include "nki_kernels.hpp"

namespace annulus_command {

/// The options, all of them spelled out, that make the same kernels without any file: "annulus nki --ranks 4 ...".
std::string nki_command_line(NkiOptions const& options, NkiProblem const& problem);

/// Markdown. Depends on the options alone.
std::string nki_readme(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels);

}  // namespace annulus_command
