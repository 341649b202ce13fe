#pragma once
// Problem of `annulus nki`: specification and mask of its kernels, and the same call for the reference backend.

#include <annulus/nki/kernels/kernel_spec.hpp>
#include <annulus/nki/kernels/ring_mask.hpp>
#include <annulus/nki/program/access.hpp>
#include <optional>
#include <vector>

#include "attend_files.hpp"
#include "nki_options.hpp"

namespace annulus_command {

/// The call and what the kernels are built from.
struct NkiProblem {
  Call call;
  annulus::nki::KernelSpec spec;
  annulus::nki::RingMask mask;
  std::vector<annulus::Index> documents;  ///< global start positions; empty: one document

  /// Rings in the kernel's tables; 1 for a single rank, whose kernel has no collectives.
  int groups() const { return spec.ranks == 1 ? 1 : spec.groups; }
  /// Ranks of all rings.
  int world() const { return spec.ranks * groups(); }
};

/// The files of --q, --k and --v, if they are given.
std::optional<AttendFiles> read_nki_files(NkiOptions const& options);

/// Shape of the call, from the files or, without files, from the options. Throws InputError as shape_of does.
CallShape nki_shape(NkiOptions const& options, std::optional<AttendFiles> const& files);

/// The problem. Throws InputError, ShapeError or UnsupportedError if no kernel can be built for it.
NkiProblem nki_problem(NkiOptions const& options, CallShape const& shape);

/// Global operands in the axis order of the call, rounded to the element types of the kernel: from the files, or random
/// with a standard normal distribution. Throws InputError for elements that are not finite in that type.
Inputs<float> nki_inputs(NkiOptions const& options, NkiProblem const& problem, std::optional<AttendFiles>&& files);

}  // namespace annulus_command
