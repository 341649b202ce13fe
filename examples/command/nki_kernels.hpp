#pragma once
// Tile programs of `annulus nki`, built and validated.

#include <annulus/nki/hardware/hardware.hpp>
#include <annulus/nki/program/program.hpp>
#include <annulus/core/shape.hpp>
#include <string>
#include <vector>

#include "nki_problem.hpp"

namespace annulus_command {

/// A valid kernel, with the time that building and validating it took.
struct NkiKernel {
  annulus::Pass pass = annulus::Pass::forward;
  annulus::nki::Program program{};
  double build_seconds = 0, validate_seconds = 0;

  std::string title() const { return pass == annulus::Pass::forward ? "forward" : "backward"; }
  /// Name of a file written per kernel.
  std::string file(std::string const& extension) const { return program.name + extension; }
};

/// The kernels that the options ask for, all of them valid. Throws ShapeError or UnsupportedError where the library
/// cannot build one, or where one breaks a rule of the hardware.
std::vector<NkiKernel> nki_kernels(NkiOptions const& options, NkiProblem const& problem);

/// Name of the input that carries the mask of a program; empty where it has none.
std::string mask_input_of(annulus::nki::Program const& program);

/// Values of that input for rank `rank` of a ring.
std::vector<float> mask_table(NkiProblem const& problem, NkiKernel const& kernel, int rank);

}  // namespace annulus_command
