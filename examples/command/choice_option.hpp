#pragma once
// Command-line options that take one of several words, and switches, which take no value.

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "input_error.hpp"

namespace annulus_command {

/// Accepted words and the value of each.
template <class Value>
using Choices = std::vector<std::pair<std::string, Value>>;

/// Adds an option whose word sets `target`; without the option `target` keeps its default.
template <class Target, class Value>
CLI::Option* add_choice(CLI::App& app, std::string const& name, Target& target, Choices<Value> const& choices,
                        std::string const& description) {
  std::vector<std::string> words;
  std::string accepted;
  for (auto const& [word, meaning] : choices) {
    accepted += (words.empty() ? "" : "|") + word;
    words.push_back(word);
  }
  auto const take = [&target, choices](std::string const& given) {
    for (auto const& [word, meaning] : choices)
      if (word == given) target = meaning;
  };
  auto const check = [words, accepted](std::string const& given) {
    for (std::string const& word : words)
      if (word == given) return std::string();
    return "'" + excerpt(given) + "' is not known; accepted: " + accepted;
  };
  return app.add_option_function<std::string>(name, take, description)
      ->check(CLI::Validator(check, ""))
      ->type_name(accepted);
}

/// Adds a switch that sets `target`; a value (--name=5) is refused.
inline CLI::Option* add_switch(CLI::App& app, std::string const& name, bool& target, std::string const& description) {
  return app.add_flag(name, target, description)->disable_flag_override();
}

}  // namespace annulus_command
