#pragma once
// `annulus nki`: ring attention as Trainium kernels, printed, simulated and costed.

#include <annulus/nki/kernels/kernel_spec.hpp>
#include <annulus/nki/print/python_names.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attend.hpp"

namespace CLI {
class App;
}

namespace annulus_command {

/// Side that rotates in the backward pass; none: no backward kernel.
enum class NkiBackward { none, queries, keys };

/// The kernels to build.
enum class NkiOnly { both, forward, backward };

/// Parsed options, with their defaults.
struct NkiOptions {
  AttendOptions attend;  ///< files, mask, scale, cap, sharding, ranks, axes, out_dir and trace: as for attend

  std::filesystem::path emit, listing;  ///< empty if not given
  bool like_nkilib = false;             ///< the emitted functions have nkilib's names, parameters and layouts
  bool plain = false;                   ///< emit plain loops in place of the fast kernels
  bool simulate = false;
  bool cost_only = false;

  std::optional<annulus::Index> tokens_per_rank;  ///< queries; unset: by the files
  std::optional<annulus::Index> keys_per_rank;    ///< unset: as many as tokens_per_rank
  std::optional<annulus::Index> tokens, keys;     ///< of the whole sequence; taken only where those per rank are given
  annulus::Index batch = 1;
  annulus::Index query_heads = 1;
  std::optional<annulus::Index> kv_heads;  ///< unset: as many as query_heads
  annulus::Index head_dim = 128;
  std::optional<annulus::Index> value_dim;  ///< unset: head_dim

  annulus::nki::ElementType type = annulus::nki::ElementType::bfloat16;
  std::optional<annulus::nki::ElementType> output_type;  ///< unset: type
  std::optional<annulus::nki::ElementType> lse_type;     ///< unset: float32
  std::string sinks;  ///< number of sink logits per query head, or a file; empty: none
  std::string bias;   ///< axes along which a bias varies, or a file; empty: none
  annulus::nki::ElementType bias_type = annulus::nki::ElementType::float32;
  bool bias_gradient = false;             ///< the backward kernel also returns dbias
  std::vector<annulus::Index> documents;  ///< global start positions, the first 0; empty: one document
  bool run_time_documents = false;        ///< kernels take the tables of all documents
  bool queries_by_token = false;
  bool keys_by_token = false;
  std::optional<bool> keys_stationary;  ///< also a forward kernel with stationary keys; unset: where one can be built
  bool training = true;
  std::optional<annulus::nki::MaskedRow> masked_row;  ///< unset: minus_infinity
  int cores = 2;                                      ///< physical cores per rank (LNC)
  annulus::nki::Target target = annulus::nki::Target::trn2;
  std::optional<annulus::nki::Version> version;  ///< oldest NKI for the printed kernels; unset: nki_0_3
  int groups = 1;
  std::optional<NkiBackward> backward;  ///< unset: queries, or none without training
  NkiOnly only = NkiOnly::both;

  std::optional<std::uint64_t> seed, ring_order;

  annulus::nki::Spelling spelling() const {
    return annulus::nki::spelling_of(version.value_or(annulus::nki::Version::nki_0_3));
  }
  int ranks() const { return attend.ranks.value_or(default_simulated_ranks); }
  bool reads_files() const { return !attend.q.empty(); }
  /// --sinks as a number; unset where it is not given or names a file.
  std::optional<annulus::Index> sinks_per_head() const;
  /// --bias as axes, with its type and gradient; unset where it is not given or names a file.
  std::optional<annulus::nki::BiasSpec> bias_axes() const;
  bool wants_forward() const { return only != NkiOnly::backward; }
  bool wants_backward() const { return only != NkiOnly::forward && rotating_side() != NkiBackward::none; }
  NkiBackward rotating_side() const { return backward.value_or(training ? NkiBackward::queries : NkiBackward::none); }
};

/// Adds the subcommand. Its options are parsed into `options`, which must live as long as `app`.
CLI::App& add_nki(CLI::App& app, NkiOptions& options);

/// Checks the options without reading files. Throws InputError or UnsupportedError if they are not consistent.
void require_consistent(NkiOptions const& options);

/// Builds and validates the kernels, simulates or costs them, and then writes the files. Throws the errors that
/// ending_of (exit_status.hpp) handles; std::runtime_error if a simulated kernel exceeds its accepted error.
void run_nki_command(NkiOptions const& options);

}  // namespace annulus_command
