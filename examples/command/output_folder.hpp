#pragma once
// The folder for results: created, locked and tried before anything is computed, and removed again if nothing comes of
// it.

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <sys/stat.h>

#include "folder_lock.hpp"
#include "input_error.hpp"
#include "pending_file.hpp"

namespace annulus_command {

class OutputFolder {
 public:
  /// Creates the folder where it is missing, and locks it until this object goes away. Throws InputError where another
  /// run has it locked, where a file in it cannot be written, or where one of `names` exists and is not a regular file,
  /// or is one of `inputs`, which the results would replace. names: at least one.
  OutputFolder(std::filesystem::path folder, std::vector<std::string> const& names,
               std::vector<std::filesystem::path> const& inputs)
      : folder_(std::move(folder)) {
    try {
      create_and_lock();
      for (std::string const& name : names) require_free(folder_ / name, inputs);
      PendingFile const trial(folder_ / names.front());
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
        throw InputError(file.string() +
                         ": is an input, which a result would replace; accepted: another name or folder");
  }

 private:
  [[noreturn]] void fail(std::string const& reason) const {
    throw InputError(folder_.string() + ": " + reason + "; accepted: a folder that can be written, or made");
  }

  /// Another run may remove the folder, or those above it, between the two.
  void create_and_lock() {
    int error = 0;
    for (int attempt = 0; attempt < 100; ++attempt) {
      error = create();
      if (error == ENOENT) continue;
      if (error != 0) break;
      auto [outcome, lock] = FolderLock::acquire(folder_);
      switch (outcome) {
        case FolderLock::Outcome::held:
          lock_ = std::move(lock);
          return;
        case FolderLock::Outcome::taken:
          for (RemovedUnlessKept& made : made_) made.keep();  // the other run needs them
          throw InputError(folder_.string() +
                           ": another run writes there now; accepted: another folder, or a later time");
        case FolderLock::Outcome::unreadable:
          fail("cannot be read (" + detail::reason_of(errno) + ")");
        case FolderLock::Outcome::gone:
          remove_what_was_made();
          error = ENOENT;
      }
    }
    fail("cannot be made (" + detail::reason_of(error) + ")");
  }

  /// 0, or the errno of the folder that could not be made.
  int create() {
    std::error_code error;
    auto const status = std::filesystem::status(folder_, error);  // asked once: another run may make it meanwhile
    if (std::filesystem::is_directory(status)) return 0;
    if (std::filesystem::exists(status)) fail("is not a folder");
    std::filesystem::path missing;
    for (std::filesystem::path const& part : folder_) {
      missing /= part;
      if (std::filesystem::is_directory(missing, error)) continue;
      RemovedUnlessKept made(missing.string(), RemovedUnlessKept::Kind::folder,
                             [](char const* path) { return ::mkdir(path, 0777) == 0; });
      if (made)
        made_.push_back(std::move(made));
      else if (int const reason = errno; reason != EEXIST || !std::filesystem::is_directory(missing, error))
        return reason;
    }
    return 0;
  }

  /// A folder with something in it stays.
  void remove_what_was_made() noexcept {
    while (!made_.empty()) made_.pop_back();
  }

  std::filesystem::path folder_;
  std::shared_ptr<FolderLock> lock_;
  std::vector<RemovedUnlessKept> made_;
};

}  // namespace annulus_command
