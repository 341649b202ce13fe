#pragma once
// The command line of train_bytes.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "run.hpp"
#include "training.hpp"

namespace train_bytes {

struct CommandLine {
  std::optional<int> ranks;  ///< default: one for each core, or the processes of the MPI job
  bool mpi = false;
  bool in_double = false;  ///< element type double instead of float
  TrainingOptions training;
  Budget budget;
  std::filesystem::path text;
  std::filesystem::path csv, svg;           ///< empty: not written
  std::vector<std::filesystem::path> plot;  ///< curves to draw instead of training
  Index generated_bytes = 0;
  double temperature = 0.7;
  std::string prompt = "/// ";
};

/// Throws InputError for arguments that are not accepted. Empty if help was asked for, which has then been printed if
/// `prints` is true. default_text: the folder that is read without --text.
std::optional<CommandLine> parse(int argc, char const* const* argv, std::filesystem::path const& default_text,
                                 bool prints);

}  // namespace train_bytes
