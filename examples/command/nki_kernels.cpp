#include "nki_kernels.hpp"

#include <annulus/nki/kernels/backward_kernel.hpp>
#include <annulus/nki/kernels/forward_kernel.hpp>
#include <annulus/nki/validate/validate.hpp>
#include <chrono>
#include <utility>

namespace annulus_command {

namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

template <class Build>
NkiKernel built(annulus::Pass pass, NkiProblem const& problem, Build&& build) {
  NkiKernel kernel{.pass = pass};
  Stopwatch const building;
  kernel.program = build();
  kernel.build_seconds = building.seconds();
  Stopwatch const validating;
  annulus::nki::validate(kernel.program, annulus::nki::hardware_of(problem.spec.target));
  kernel.validate_seconds = validating.seconds();
  return kernel;
}

}  // namespace

std::vector<NkiKernel> nki_kernels(NkiOptions const& options, NkiProblem const& problem) {
  std::vector<NkiKernel> kernels;
  if (options.wants_forward())
    kernels.push_back(built(annulus::Pass::forward, problem,
                            [&] { return annulus::nki::ForwardKernel(problem.spec, problem.mask).ring(); }));
  if (options.wants_backward())
    kernels.push_back(built(annulus::Pass::backward, problem,
                            [&] { return annulus::nki::BackwardKernel(problem.spec, problem.mask).ring(); }));
  return kernels;
}

std::string mask_input_of(annulus::nki::Program const& program) {
  for (char const* name : {"mask_offsets", "mask_ranges"})
    if (program.find(name) >= 0) return name;
  return {};
}

std::vector<float> mask_table(NkiProblem const& problem, NkiKernel const& kernel, int rank) {
  bool const queries_rotate =
      kernel.pass == annulus::Pass::backward && problem.spec.travels == annulus::nki::RotatingSide::queries;
  return mask_input_of(kernel.program) == "mask_offsets" ? problem.mask.offsets(rank, problem.groups(), queries_rotate)
                                                         : problem.mask.ranges(rank, problem.groups(), queries_rotate);
}

}  // namespace annulus_command
