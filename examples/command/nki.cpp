#include "nki.hpp"

#include <algorithm>
#include <annulus/nki/cost/trace.hpp>
#include <annulus/nki/program/listing.hpp>
#include <annulus/nki/simulate/arithmetic.hpp>
#include <cmath>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include "attend_files.hpp"
#include "nki_parts.hpp"
#include "output_stream.hpp"
#include "verification.hpp"

namespace annulus_command {

namespace {

/// Name of a file written per kernel: the given name for a single kernel, else with the pass before the extension.
std::filesystem::path file_of(std::filesystem::path const& given, NkiKernel const& kernel, std::size_t kernels) {
  if (kernels == 1) return given;
  std::filesystem::path path = given;
  path.replace_filename(given.stem().string() + kernel.program().name.substr(std::string("ring_attention").size()) +
                        given.extension().string());
  return path;
}

/// One text file per kernel, opened before anything is computed.
class KernelTexts {
 public:
  /// taken: paths of the other output files; those of this object are added. Throws InputError for a path that is
  /// taken, is an input, or cannot be written.
  KernelTexts(std::filesystem::path const& given, NkiOptions const& options, std::vector<NkiKernel> const& kernels,
              std::vector<std::filesystem::path>& taken) {
    if (given.empty()) return;
    AttendOptions const& attend = options.attend;
    for (NkiKernel const& kernel : kernels) {
      std::filesystem::path const path = file_of(given, kernel, kernels.size());
      OutputFolder::require_free(path, {attend.q, attend.k, attend.v, attend.dout, options.sinks, options.bias});
      for (std::filesystem::path const& other : taken)
        if (name_one_file(path, other))
          throw InputError(path.string() + ": two files of this call have that name; accepted: names that differ");
      taken.push_back(path);
      files_.emplace_back(path);
    }
  }

  template <class Write>
  void write(std::vector<NkiKernel> const& kernels, Write&& write) {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      write(files_[i].stream(), kernels[i].program());
      files_[i].close();
    }
    commit_together(files_);
    for (PendingFile const& file : files_) std::cout << file.path().string() << '\n';
  }

 private:
  std::vector<PendingFile> files_;
};

bool simulated(NkiProblem const& problem, NkiKernel const& kernel) {
  return kernel.pass == annulus::Pass::forward || problem.call.shape.backward;
}

/// Takes output and lse from the reference, rounded as a backward kernel reads them, if no forward kernel runs.
void take_forward(NkiProblem const& problem, Results<double> const& reference, Results<float>& results) {
  using annulus::nki::simulator::round_to;
  std::transform(reference.out.data(), reference.out.data() + reference.out.size(), results.out.data(),
                 [](double x) { return static_cast<float>(x); });
  std::transform(reference.lse.data(), reference.lse.data() + reference.lse.size(), results.lse.data(), [&](double x) {
    return std::isinf(x) && problem.spec.masked_row == annulus::nki::MaskedRow::zero ? 0.0f : static_cast<float>(x);
  });
  round_to(problem.spec.output_type, results.out.data(), results.out.size());
  round_to(problem.spec.lse_type, results.lse.data(), results.lse.size());
}

/// Runs the kernels and returns their errors, which the caller checks after all files are written.
std::vector<NkiError> simulate(NkiOptions const& options, NkiProblem const& problem,
                               std::vector<NkiKernel> const& kernels, Inputs<float> const& inputs,
                               std::optional<ResultFiles>& files) {
  bool const forward = options.wants_forward();
  Results<double> const reference = reference_results(detail::widened(inputs, problem.call), problem.call);
  Results<float> results = make_results<float>(problem.call, {problem.call.shape.queries, problem.call.shape.keys});
  if (results.dbias) results.dbias->setZero();
  if (!forward) take_forward(problem, reference, results);
  std::vector<int> const order = nki_ring_order(options);
  bool forward_is_done = false;
  for (NkiKernel const& kernel : kernels) {
    if (!simulated(problem, kernel)) {
      std::cout << kernel.program().name << ": not simulated, since --dout is not given\n";
      continue;
    }
    if (kernel.pass == annulus::Pass::forward && std::exchange(forward_is_done, true)) continue;
    NkiRun const run = run_nki(problem, kernel, order, inputs, results);
    print_formatted("%s: %d ranks simulated in %.2f s, %lld instructions\n", kernel.program().name.c_str(),
                    problem.spec.ranks, run.seconds, static_cast<long long>(run.instructions));
    if (run.beyond_range == 0) continue;
    forward_is_done = false;
    print_formatted("%lld rows have sums beyond 2^-60 to 2^60: run again with a running maximum\n",
                    static_cast<long long>(run.beyond_range));
  }
  add_sink_gradients(problem, inputs, results);
  std::vector<NkiError> errors = nki_errors(problem, inputs, results, reference, forward);
  print_errors(errors);
  std::cout << '\n' << std::flush;
  if (files) files->write(results, {});
  return errors;
}

}  // namespace

void run_nki_command(NkiOptions const& options) {
  require_consistent(options);
  std::optional<AttendFiles> files = read_nki_files(options);
  NkiProblem const problem = nki_problem(options, nki_shape(options, files));
  std::optional<Inputs<float>> inputs;  // first: bad values are refused before anything is built
  if (options.simulate) inputs = nki_inputs(options, problem, std::move(files));
  std::vector<NkiKernel> const kernels = nki_kernels(options, problem);

  std::optional<NkiFolder> folder;
  if (!options.emit.empty()) folder.emplace(options, problem, kernels);
  AttendOptions result_options = options.attend;
  result_options.trace.clear();  // --trace is the modelled timeline here, not a trace of ranks
  result_options.bias = options.bias;
  std::optional<ResultFiles> results;
  if (!options.attend.out_dir.empty()) results.emplace(result_options, problem.call.shape);
  std::vector<std::filesystem::path> taken;
  if (folder) taken = folder->paths();
  if (results)
    for (char const* name : {"out.npy", "lse.npy", "dq.npy", "dk.npy", "dv.npy", "dsinks.npy", "dbias.npy"})
      taken.push_back(options.attend.out_dir / name);
  KernelTexts traces(options.attend.trace, options, kernels, taken);
  KernelTexts listings(options.listing, options, kernels, taken);

  std::vector<NkiError> errors;
  if (options.simulate) errors = simulate(options, problem, kernels, *inputs, results);
  if (options.simulate || options.cost_only) print_costs(problem, kernels, options.cost_only);
  std::cout << std::flush;
  traces.write(kernels, [&](std::ostream& out, annulus::nki::Program const& program) {
    annulus::nki::write_trace(out, program, annulus::nki::hardware_of(problem.spec.target));
  });
  listings.write(
      kernels, [](std::ostream& out, annulus::nki::Program const& program) { out << annulus::nki::listing(program); });
  std::cout << std::flush;
  require_good(errors);
  if (folder) folder->write(options, problem, kernels);
  if (std::string const warning = nki_ring_warning(problem.spec); !warning.empty())
    std::cerr << "annulus: warning: " << warning << '\n';
}

}  // namespace annulus_command
