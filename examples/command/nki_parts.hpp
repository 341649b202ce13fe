#pragma once
// Parts of `annulus nki`: the problem, its kernels, their simulation, its check, and the emitted folder.

#include <annulus/core/index.hpp>
#include <annulus/nki/hardware/hardware.hpp>
#include <annulus/nki/kernels/kernel_spec.hpp>
#include <annulus/nki/kernels/ring_mask.hpp>
#include <annulus/nki/program/access.hpp>
#include <annulus/nki/program/program.hpp>
#include <annulus/nki/validate/validate.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attend_files.hpp"
#include "nki.hpp"
#include "npy.hpp"
#include "output_folder.hpp"
#include "pending_file.hpp"

namespace annulus_command {

/// The call and what the kernels are built from.
struct NkiProblem {
  Call call;
  annulus::nki::KernelSpec spec;
  annulus::nki::RingMask mask;
  annulus::nki::RingMask global_mask;     ///< the same of one rank that holds all rows
  std::vector<annulus::Index> documents;  ///< global start positions; empty: one document
  bool like_nkilib = false;               ///< functions that make the tables of the mask themselves

  /// Spec of the kernel of a pass: nkilib's backward function takes q and k as [batch, heads, dim, rows].
  annulus::nki::KernelSpec spec_for(annulus::Pass pass) const {
    annulus::nki::KernelSpec own = spec;
    if (like_nkilib && pass == annulus::Pass::backward) own.queries_by_token = own.keys_by_token = false;
    return own;
  }
  /// True if queries rotate in the kernel of a pass: its tables are then by owner of queries, else by owner of keys.
  bool queries_rotate(annulus::Pass pass) const {
    return pass == annulus::Pass::backward && spec.travels == annulus::nki::RotatingSide::queries;
  }
  /// Rings in the kernel's tables.
  int groups() const { return spec.groups; }
  /// Ranks of all rings.
  int world() const { return spec.ranks * groups(); }
};

/// The files of --q, --k and --v, if they are given.
std::optional<AttendFiles> read_nki_files(NkiOptions const& options);

/// What the vendor's pages do not promise about the rings of a kernel, as one sentence; empty: nothing. Instances
/// of trn2 have 16 chips of 8 cores; those of trn3 4 or 16 ("Amazon EC2 Trn3 Architecture"): a power of two fits both.
std::string nki_ring_warning(annulus::nki::KernelSpec const& spec);

/// Shape of the call, from the files or, without files, from the options. Throws InputError as shape_of does.
CallShape nki_shape(NkiOptions const& options, std::optional<AttendFiles> const& files);

/// The problem. Throws InputError, ShapeError or UnsupportedError if no kernel can be built for it.
NkiProblem nki_problem(NkiOptions const& options, CallShape const& shape);

/// Global operands in the axis order of the call, rounded to the element types of the kernel: from the files, or random
/// with a standard normal distribution. Throws InputError for elements that are not finite in that type.
Inputs<float> nki_inputs(NkiOptions const& options, NkiProblem const& problem, std::optional<AttendFiles>&& files);

/// A valid kernel, with the time that building and validating it took.
struct NkiKernel {
  annulus::Pass pass = annulus::Pass::forward;
  annulus::nki::ValidatedProgram validated;
  double build_seconds = 0, validate_seconds = 0;

  annulus::nki::Program const& program() const { return validated.program(); }
  std::string title() const { return pass == annulus::Pass::forward ? "forward" : "backward"; }
  /// Name of a file written per kernel.
  std::string file(std::string const& extension) const { return program().name + extension; }
};

/// The kernels that the options ask for, all of them valid, in the order in which they run: of two forward kernels
/// first that with stationary keys, and the other one only if a row is beyond its range. Throws ShapeError or
/// UnsupportedError where the library cannot build one, or where one breaks a rule of the hardware.
std::vector<NkiKernel> nki_kernels(NkiOptions const& options, NkiProblem const& problem);

/// Prints the cost table of each kernel. sensitivity: also the utilisation by visible pairs alone, the busiest engine,
/// and the times for other constants of the cost model.
void print_costs(NkiProblem const& problem, std::vector<NkiKernel> const& kernels, bool sensitivity);

/// Name of the input that carries the mask of a program; empty where it has none.
std::string mask_input_of(annulus::nki::Program const& program);

/// Values of that input for rank `rank` of a ring.
std::vector<float> mask_table(NkiProblem const& problem, NkiKernel const& kernel, int rank);

/// Python literals.
std::string python(bool value);
std::string python(annulus::Index value);

/// A tensor of a kernel as the programs of an emitted folder pass it.
struct NkiTensor {
  std::string name;     ///< in the kernel's function
  std::string operand;  ///< what it is: q, k, v, dout, output, lse, dq, ...
  annulus::nki::ElementType type;
  std::vector<annulus::Index> shape;
  bool dim_first = false;  ///< axes [batch, heads, dim, rows]
  bool optional = false;   ///< a parameter with a default, given by keyword
};

/// An argument of a kernel's function that is no tensor, as Python.
struct NkiConstant {
  std::string name, value;
  std::string fallback{};  ///< default of the parameter; empty: none
};

/// A kernel's function as the programs of an emitted folder call it: tensors in order, then constants by keyword.
struct NkiFunction {
  std::string name;
  std::vector<NkiTensor> inputs, outputs;
  std::vector<NkiConstant> constants;
};

/// Paragraphs on the algorithm of a kernel, for the comment on top of its text.
std::vector<std::string> nki_notes(NkiProblem const& problem, NkiKernel const& kernel);

/// The function of a printed kernel or, with --like nkilib, nkilib_function().
NkiFunction nki_function(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel);

/// Throws InputError where nkilib has no parameter for one of the options.
void require_nkilib(NkiOptions const& options);

/// Throws InputError for an option that the kernels of --plain do not take.
void require_plain(NkiOptions const& options);

/// Throws UnsupportedError if SBUF does not hold what the kernels of --plain keep there.
void require_plain_sums_fit(NkiOptions const& options, NkiProblem const& problem);

/// The module of a kernel in plain loops, with the function of the fast one.
std::string nki_plain_text(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel);

/// nkilib's function, ring_attention_spmd_fwd or _bwd, with its names, layouts and order. Constants are in the order of
/// its parameters; bound_min and bound_max precede segment_cu_seqlens.
NkiFunction nkilib_function(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel);

/// The module with that function, which holds the printed kernel.
std::string nkilib_text(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel);

/// README.md's section on that function.
std::string nkilib_readme(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel);

/// Cost of simulating one kernel.
struct NkiRun {
  annulus::Index instructions = 0;  ///< of all ranks and cores
  annulus::Index beyond_range = 0;  ///< rows whose results need the kernel that subtracts a maximum
  double seconds = 0;
};

/// Ranks in the physical order of the ring: shuffled by the seed of --ring-order, or in rank order without it.
std::vector<int> nki_ring_order(NkiOptions const& options);

/// Runs one kernel on all ranks of a ring and gathers its outputs into `results`, which must hold output and lse for
/// the backward kernel. With several rings, simulates the last one.
NkiRun run_nki(NkiProblem const& problem, NkiKernel const& kernel, std::vector<int> const& ring_order,
               Inputs<float> const& inputs, Results<float>& results);

/// Dense attention that rounds where the kernel does: products and sums in float, weights and gradients of the logits
/// rounded to the element type of the operands before they are multiplied, output and lse to their own types. Fully
/// masked rows have output 0 and lse -inf.
Results<float> dense_in_kernel_rounding(NkiProblem const& problem, Inputs<float> const& inputs);

/// Computes results.dsinks, if set, from the output and lse in `results`. Kernels leave the gradient of the sink logits
/// to the host.
void add_sink_gradients(NkiProblem const& problem, Inputs<float> const& inputs, Results<float>& results);

/// The root of the sum of the squared terms of each element of out, dq, dk, dv and dsinks: about as large as
/// the sum if signs are random, larger where terms cancel, 0 where there are no terms. lse is unspecified.
///
/// reference: out and lse of the same operands, in double.
Results<double> term_sizes(NkiProblem const& problem, Inputs<float> const& inputs, Results<double> const& reference);

/// Error of one result.
struct NkiError {
  std::string name;
  double largest = 0;   ///< largest difference over the largest magnitude of the reference; of lse: or over 1 if larger
  double distance = 0;  ///< relative, in the Frobenius norm; of lse: the largest absolute difference; never NaN
  double dense_distance = 0;  ///< the distance of dense_in_kernel_rounding()
  double accepted = 0;        ///< largest accepted distance; always finite
  bool of_terms = false;      ///< relative to the terms of the sums, because they cancel, not to the reference

  bool good() const { return distance <= accepted; }
};

/// Errors of all results. reference: of the same operands, on one rank, in double. forward: also check output and lse.
std::vector<NkiError> nki_errors(NkiProblem const& problem, Inputs<float> const& inputs, Results<float> const& found,
                                 Results<double> const& reference, bool forward);

/// Prints a table with one line per result.
void print_errors(std::vector<NkiError> const& errors);

/// Throws std::runtime_error for the first error beyond what is accepted.
void require_good(std::vector<NkiError> const& errors);

/// Files that --emit writes for the mask of one kernel.
struct NkiMaskFiles {
  std::string input;                 ///< mask_offsets, mask_ranges or mask_key_ranges; empty: the kernel has none
  std::vector<std::size_t> shape{};  ///< of one rank
  std::size_t bytes = 0;             ///< of all ranks of the ring
  bool written = false;
  std::vector<std::string> names{};  ///< one file, whose first axis is the rank in its ring, or one for each rank
};
NkiMaskFiles nki_mask_files(NkiProblem const& problem, NkiKernel const& kernel);

/// The command line, with all options, that builds the same kernels without files: "annulus nki --ranks 4 ...".
/// one_rank: kernels for one rank that holds as many rows.
std::string nki_command_line(NkiOptions const& options, NkiProblem const& problem, bool one_rank = false);

/// README.md of the emitted folder. Depends only on the options.
std::string nki_readme(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels);

/// problem.py of the emitted folder: what check.py and the launchers need to know.
std::string nki_problem_text(NkiOptions const& options, NkiProblem const& problem,
                             std::vector<NkiKernel> const& kernels);

/// The output folder, created before anything is computed so that one that cannot be written ends the command at once.
class NkiFolder {
 public:
  NkiFolder(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels);

  /// All files that write() writes.
  std::vector<std::filesystem::path> const& paths() const { return paths_; }

  /// Writes all files under temporary names, then renames them; README.md, deleted first, is renamed last: if it
  /// exists, the set is complete. Lists the files on stdout, those of the model as one line.
  void write(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels);

 private:
  OutputFolder folder_;
  OutputFolder model_;  ///< in it: the numpy model of NKI
  std::vector<std::filesystem::path> paths_;
};

}  // namespace annulus_command
