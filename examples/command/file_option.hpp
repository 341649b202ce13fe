#pragma once
// Command-line options that take the name of a file or folder.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

namespace annulus_command {

/// Adds an option that sets `path`; without the option `path` keeps its value. An empty name is refused.
inline CLI::Option* add_file(CLI::App& app, char const* name, std::filesystem::path& path, char const* description) {
  auto const take = [&path](std::string const& text) { path = text; };
  auto const check = [](std::string const& text) {
    return text.empty() ? std::string("an empty name is given; accepted: the name of a file") : std::string();
  };
  return app.add_option_function<std::string>(name, take, description)
      ->check(CLI::Validator(check, ""))
      ->type_name("FILE");
}

}  // namespace annulus_command
