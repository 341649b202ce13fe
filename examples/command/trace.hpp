#pragma once
// `annulus trace`: what a timeline written by `annulus attend --trace` says: work, exposed communication, imbalance.

#include <filesystem>

namespace CLI {
class App;
}

namespace annulus_command {

/// Parsed options.
struct TraceOptions {
  std::filesystem::path trace;
  std::filesystem::path svg;  ///< picture to write; empty: none
};

/// Adds the subcommand. Its options are parsed into `options`, which must live as long as `app`.
CLI::App& add_trace(CLI::App& app, TraceOptions& options);

/// Prints a table of the passes and draws the timeline. Throws InputError if the file is no such timeline.
void run_trace(TraceOptions const& options);

}  // namespace annulus_command
