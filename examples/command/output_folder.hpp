#pragma once
// The folder for results: made and tried before anything is computed, and taken away again if nothing comes of it.

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "input_error.hpp"

namespace annulus_command {

class OutputFolder {
 public:
  /// Makes the folder where it is missing. Throws InputError where a file in it cannot be written, where one of `names`
  /// is there and no regular file, or is one of `inputs`, which the results would replace.
  OutputFolder(std::filesystem::path folder, std::vector<std::string> const& names,
               std::vector<std::filesystem::path> const& inputs)
      : folder_(std::move(folder)) {
    try {
      create();
      for (std::string const& name : names) require_free(folder_ / name, inputs);
      try_to_write();
    } catch (...) {
      remove_what_was_made();
      throw;
    }
  }
  OutputFolder(OutputFolder const&) = delete;
  OutputFolder& operator=(OutputFolder const&) = delete;
  ~OutputFolder() { remove_what_was_made(); }

  std::filesystem::path operator/(std::string const& name) const { return folder_ / name; }

  /// Throws InputError where `file` is there and no regular file, or is one of `inputs`.
  static void require_free(std::filesystem::path const& file, std::vector<std::filesystem::path> const& inputs) {
    std::error_code error;
    auto const status = std::filesystem::status(file, error);
    if (!std::filesystem::exists(status)) return;
    if (!std::filesystem::is_regular_file(status))
      throw InputError(file.string() + ": is there and not a regular file; accepted: a name that can be written");
    for (std::filesystem::path const& input : inputs)
      if (!input.empty() && std::filesystem::equivalent(file, input, error))
        throw InputError(file.string() + ": is an input, which a result would replace; accepted: another name or folder");
  }

 private:
  [[noreturn]] void fail(std::string const& reason) const {
    throw InputError(folder_.string() + ": " + reason + "; accepted: a folder that can be written, or made");
  }

  void create() {
    std::error_code error;
    if (std::filesystem::is_directory(folder_, error)) return;
    if (std::filesystem::exists(folder_, error)) fail("is not a folder");
    std::filesystem::path missing;
    for (std::filesystem::path const& part : folder_) {
      missing /= part;
      if (std::filesystem::is_directory(missing, error)) continue;
      std::filesystem::create_directory(missing, error);
      if (error) fail("cannot be made (" + error.message() + ")");
      made_.push_back(missing);
    }
  }

  void try_to_write() const {
    std::string const name = (folder_ / (".annulus-" + std::to_string(getpid()) + ".try")).string();
    std::FILE* const file = std::fopen(name.c_str(), "wbx");
    if (!file) fail("cannot be written (" + std::generic_category().message(errno) + ")");
    std::fclose(file);
    std::error_code ignored;
    std::filesystem::remove(name, ignored);
  }

  /// A folder with something in it stays.
  void remove_what_was_made() noexcept {
    while (!made_.empty()) {
      ::rmdir(made_.back().c_str());
      made_.pop_back();
    }
  }

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;
};

}  // namespace annulus_command
