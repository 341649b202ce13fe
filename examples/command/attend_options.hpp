#pragma once
// The options of `annulus attend`.

#include <annulus/attention/options.hpp>
#include <annulus/core/scalar.hpp>
#include <annulus/tensor/axis_order.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace annulus_command {

struct AttendOptions {
  std::filesystem::path q, k, v, dout;  ///< an empty path: not given
  std::filesystem::path bias, mask, q_segments, kv_segments, sinks;
  std::filesystem::path out_dir, trace;
  bool bias_gradient = false;
  bool verify = false;

  std::optional<int> ranks;  ///< unset: 4 simulated ranks, or as many as MPI has
  bool mpi = false;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for another rank
  std::string backend = "cpu";
  int threads = 0;                         ///< of each rank; 0: the backend chooses
  std::optional<annulus::DataType> dtype;  ///< unset: by the file of q
  annulus::AxisOrder axes = annulus::AxisOrder::bshd;
  std::optional<annulus::Index> block;  ///< of block-striped sharding
  annulus::Options attention;
};

inline constexpr int default_simulated_ranks = 4;

/// Adds the subcommand. Its options are parsed into `options`, which must live as long as `app`.
CLI::App& add_attend(CLI::App& app, AttendOptions& options);

/// Throws InputError or UnsupportedError for options that do not fit each other, whatever the files hold.
void require_consistent(AttendOptions const& options);

}  // namespace annulus_command
