#pragma once
// Timeline of all ranks as a file for chrome://tracing and Perfetto.

#include <filesystem>
#include <utility>
#include <vector>

#include "pending_file.hpp"
#include "tracing.hpp"

namespace annulus_command {

/// Trace file, opened before anything is computed. It appears under its name only when it is complete.
class TraceFile {
 public:
  /// Throws InputError where `path` cannot be written.
  explicit TraceFile(std::filesystem::path path) : file_(std::move(path)) {}

  /// Writes the Trace Event Format, one complete event ("X") for each span, with the rank as process and thread.
  void write(std::vector<std::vector<Span>> const& spans_of_ranks);

  /// The written file, to be committed.
  PendingFile take() { return std::move(file_); }

 private:
  PendingFile file_;
};

}  // namespace annulus_command
