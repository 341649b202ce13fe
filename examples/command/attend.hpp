#pragma once
// The `annulus attend` subcommand: ring attention over tensors in .npy files.

#include <annulus/attention/options.hpp>
#include <annulus/core/scalar.hpp>
#include <annulus/tensor/tensor_like.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "mpi_session.hpp"
#include "options.hpp"

namespace CLI {
class App;
}

namespace annulus_command {

/// Parsed options, with their defaults.
struct AttendOptions {
  std::filesystem::path q, k, v, dout;  ///< empty if not given
  std::filesystem::path bias, mask, q_segments, kv_segments, sinks, joint_k, joint_v;
  std::filesystem::path out_dir, trace;
  bool bias_gradient = false;
  bool verify = false;
  bool hash = false;

  std::optional<int> ranks;          ///< unset: 4 simulated ranks, all MPI ranks, or one a GPU
  std::optional<Comm> asked_comm{};  ///< unset: see comm_of
  Comm comm() const { return comm_of(asked_comm, backend); }
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for another rank
  std::string backend = "cpu";
  int threads = 0;                         ///< per rank; 0: the backend chooses
  std::optional<annulus::DataType> dtype;  ///< unset: that of q if float64 or float16, else float32
  annulus::AxisOrder axes = annulus::AxisOrder::bshd;
  std::optional<annulus::Index> block;  ///< block size of block-striped sharding, in positions
  annulus::Options attention;
};

inline constexpr int default_simulated_ranks = 4;

/// Adds the subcommand. Its options are parsed into `options`, which must live as long as `app`.
CLI::App& add_attend(CLI::App& app, AttendOptions& options);

/// Checks the options without reading files. Throws InputError or UnsupportedError if they are not consistent.
void require_consistent(AttendOptions const& options);

/// Reads and checks all files, computes, and then writes the results. session: null for simulated ranks; otherwise the
/// call is collective and rank 0 reads and writes. Throws the errors that ending_of (exit_status.hpp) handles.
void run_attend(AttendOptions const& options, MpiSession* session);

}  // namespace annulus_command
