#pragma once
// `annulus demo`: causal attention over a real text, forward and backward, on ranks that are threads, checked and
// measured.

#include <annulus/core/index.hpp>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "options.hpp"

namespace CLI {
class App;
}

namespace annulus_command {

/// Parsed options, with their defaults.
struct DemoOptions {
  std::filesystem::path text;  ///< empty: the license of the library
  int ranks = 8;
  std::string backend = "cpu";
  std::optional<Comm> asked_comm{};  ///< unset: see comm_of
  annulus::Index tokens = 8192;
  annulus::Index heads = 4;
  annulus::Index kv_heads = 2;
  annulus::Index head_dim = 64;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< longest wait for another rank
};

/// Adds the subcommand. Its options are parsed into `options`, which must live as long as `app`.
CLI::App& add_demo(CLI::App& app, DemoOptions& options);

/// Runs the demo and prints its table. Throws InputError for a bad text or shape and for GPUs that are missing,
/// std::runtime_error if an error exceeds its bound.
void run_demo(DemoOptions const& options);

}  // namespace annulus_command
