#pragma once
// What the kernels of `annulus nki` are built for, and the same call for the reference backend.

#include <annulus/backend/nki/lower/kernel_spec.hpp>
#include <annulus/backend/nki/lower/ring_mask.hpp>
#include <annulus/backend/nki/program/access.hpp>
#include <optional>
#include <vector>

#include "attend_files.hpp"
#include "nki_options.hpp"

namespace annulus_command {

struct NkiProblem {
  Call call;
  annulus::nki::KernelSpec spec;
  annulus::nki::RingMask mask;
  std::vector<annulus::Index> documents;  ///< global starts; empty: one document

  /// Rings that the kernel's tables know; a single rank has no collectives that could name others.
  int groups() const { return spec.ranks == 1 ? 1 : spec.groups; }
  int world() const { return spec.ranks * groups(); }
};

/// The files of --q, --k and --v, if they are given.
std::optional<AttendFiles> read_nki_files(NkiOptions const& options);

/// By the files, or by the options where there are none.
CallShape nki_shape(NkiOptions const& options, std::optional<AttendFiles> const& files);

/// Throws InputError, ShapeError or UnsupportedError for what no kernel can be built for.
NkiProblem nki_problem(NkiOptions const& options, CallShape const& shape);

/// Whole operands in the axis order of the call, each number rounded to the element type that the kernel takes: from
/// the files, or random, standard normal. Throws InputError for files with numbers that are not finite in that type.
Inputs<float> nki_inputs(NkiOptions const& options, NkiProblem const& problem, std::optional<AttendFiles>&& files);

}  // namespace annulus_command
