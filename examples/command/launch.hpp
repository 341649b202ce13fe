#pragma once
// Several processes that run one command: detection of their launch, comparison of their command lines.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "options.hpp"

namespace annulus_command {

/// A launch of several processes, of which this is one.
struct Launch {
  std::string_view variable;  ///< environment variable that holds the number of processes
  int processes = 1;
  int rank = 0;  ///< of this process; 0 if the environment does not tell
};

/// The launch of this process, from the first variable that is set; empty if none is. environment(name) returns the
/// value of a variable, or null.
///
/// Each variable is set only for the processes of a job. SLURM_NTASKS and SLURM_PROCID alone do not count: a batch
/// script has them and is one process. MPI launchers come before srun, which may have started them.
template <class Environment>
std::optional<Launch> launch_of(Environment&& environment) {
  struct Variables {
    char const *processes, *rank;
  };
  constexpr Variables known[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},  // Open MPI
      {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},    // MVAPICH2
      {"PMI_SIZE", "PMI_RANK"},                          // Hydra: MPICH, Intel MPI
      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},          // srun
  };
  auto const number = [&](char const* name, int& value) {
    char const* const text = environment(name);
    return text && is_whole_number(std::string_view(text), value);
  };
  for (Variables const& variables : known) {
    Launch launch{.variable = variables.processes};
    if (!number(variables.processes, launch.processes)) continue;
    if (!number(variables.rank, launch.rank)) launch.rank = 0;
    return launch;
  }
  return std::nullopt;
}

/// "4 processes were started (PMI_SIZE)".
inline std::string started(Launch const& launch) {
  return std::to_string(launch.processes) + " processes were started (" + std::string(launch.variable) + ")";
}

namespace detail {

/// Canonical text of a number; other text is returned unchanged.
inline std::string normal_word(std::string const& word) {
  auto const value = finite_value(word);
  if (!value) return word;
  // Integers that a double would round are not changed.
  constexpr double exact = 9007199254740992.0;  // 2^53
  bool const whole = word.find_first_not_of("+-0123456789") == std::string::npos;
  if (whole && std::abs(*value) > exact) return word;
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, *value).ptr);
}

/// Applies normal_word to each word between commas.
inline std::string normal_value(std::string const& text) {
  std::string normal;
  for (std::size_t begin = 0;;) {
    std::size_t const comma = std::min(text.find(',', begin), text.size());
    normal += normal_word(text.substr(begin, comma - begin));
    if (comma == text.size()) return normal;
    normal += ',';
    begin = comma + 1;
  }
}

}  // namespace detail

/// Names and values of the options, in the order of their definition. Equal for two command lines that differ only in
/// the order of options, the notation of numbers, or options given with their default value. File names are compared as
/// text.
class OptionValues {
 public:
  void add(std::string name, std::string value) { values_.emplace_back(std::move(name), std::move(value)); }

  /// Adds every option of a parsed subcommand.
  void add_all(CLI::App const& subcommand) {
    for (CLI::Option const* option : subcommand.get_options()) {
      std::string value;
      for (std::string const& result : option->results()) value += (value.empty() ? "" : " ") + result;
      if (option->count() == 0) value = option->get_default_str();
      add(option->get_name(), detail::normal_value(value));
    }
  }

  /// Serialised values, which the constructor below reads on another rank.
  std::string text() const {
    std::string text;
    for (auto const& [name, value] : values_) {
      text += name;
      text += '\0';
      text += value;
      text += '\0';
    }
    return text;
  }

  OptionValues() = default;
  explicit OptionValues(std::string_view text) {
    auto const next = [&text] {
      std::size_t const length = text.find('\0');
      std::string word(text.substr(0, length));
      text.remove_prefix(length == std::string_view::npos ? text.size() : length + 1);
      return word;
    };
    while (!text.empty()) {
      std::string name = next();
      add(std::move(name), next());
    }
  }

  /// Throws InputError if two ranks differ. records: the text() of all ranks, in rank order.
  static void require_equal(std::vector<std::string> const& records) {
    OptionValues const first(records[0]);
    for (std::size_t rank = 1; rank < records.size(); ++rank) {
      if (records[rank] == records[0]) continue;
      OptionValues const other(records[rank]);
      std::string const ranks = " on rank 0 and ", end = " on rank " + std::to_string(rank);
      std::size_t const shared = std::min(first.values_.size(), other.values_.size());
      for (std::size_t i = 0; i < shared; ++i) {
        auto const &mine = first.values_[i], &theirs = other.values_[i];
        if (mine == theirs) continue;
        if (mine.first != theirs.first) break;
        throw InputError(mine.first + " is " + shown(mine.second) + ranks + shown(theirs.second) + end +
                         "; accepted: the same command line on all ranks");
      }
      throw InputError("the options of the command are not the same" + ranks.substr(0, 10) + " and" + end +
                       "; accepted: the same version of the command on all ranks");
    }
  }

 private:
  static std::string shown(std::string const& value) {
    return value.empty() ? "not given" : "'" + excerpt(value, 200) + "'";
  }

  std::vector<std::pair<std::string, std::string>> values_;
};

}  // namespace annulus_command
