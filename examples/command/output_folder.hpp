#pragma once
// Output folder: created, locked and tested before anything is computed, and removed again if nothing is written.

#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "errors.hpp"
#include "pending_file.hpp"

namespace annulus_command {

/// flock on the folder itself: no lock file, released when the process ends. On a file system without flock no other
/// process is excluded.
class FolderLock {
 public:
  enum class Outcome { held, taken, gone, unreadable };

  /// Tries to lock, without waiting. taken: another process holds the lock. gone: the folder was deleted or replaced.
  /// unreadable: see errno. Calls in one process for the same folder share one lock. Not thread-safe.
  static std::pair<Outcome, std::shared_ptr<FolderLock>> acquire(std::filesystem::path const& folder) {
    std::shared_ptr<FolderLock> const lock(new FolderLock);  // allocates before open sets errno
    lock->descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock->descriptor_ < 0) return {errno == ENOENT ? Outcome::gone : Outcome::unreadable, nullptr};
    struct stat opened {};
    if (::fstat(lock->descriptor_, &opened) != 0) return {Outcome::unreadable, nullptr};
    std::weak_ptr<FolderLock>& known = locks_of_process()[{opened.st_dev, opened.st_ino}];
    if (auto const mine = known.lock()) return {Outcome::held, mine};
    if (::flock(lock->descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return {Outcome::taken, nullptr};
    struct stat named {};
    if (::stat(folder.c_str(), &named) != 0 || named.st_dev != opened.st_dev || named.st_ino != opened.st_ino)
      return {Outcome::gone, nullptr};
    known = lock;
    return {Outcome::held, lock};
  }

  FolderLock(FolderLock const&) = delete;
  FolderLock& operator=(FolderLock const&) = delete;
  ~FolderLock() {
    int const error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    errno = error;
  }

 private:
  FolderLock() = default;

  static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<FolderLock>>& locks_of_process() {
    static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<FolderLock>> locks;
    return locks;
  }

  int descriptor_ = -1;
};

/// A locked folder for output files.
class OutputFolder {
 public:
  /// Creates the folder if it is missing and locks it for the lifetime of this object. Throws InputError if another run
  /// holds the lock, if a file in it cannot be written, or if one of `names` (at least one) exists and is not a regular
  /// file, or is one of `inputs`, which the results would overwrite.
  OutputFolder(std::filesystem::path folder, std::vector<std::string> const& names,
               std::vector<std::filesystem::path> const& inputs)
      : folder_(std::move(folder)) {
    try {
      create_and_lock();
      for (std::string const& name : names) require_free(folder_ / name, inputs);
      PendingFile const trial(folder_ / names.front());
    } catch (...) {
      remove_created();
      throw;
    }
  }
  OutputFolder(OutputFolder const&) = delete;
  OutputFolder& operator=(OutputFolder const&) = delete;
  ~OutputFolder() { remove_created(); }

  std::filesystem::path operator/(std::string const& name) const { return folder_ / name; }

  /// Deletes the files whose names `obsolete` accepts; one that cannot be deleted remains.
  template <class Obsolete>
  void remove_if(Obsolete&& obsolete) const {
    std::error_code error;
    std::vector<std::filesystem::path> found;
    for (auto const& entry : std::filesystem::directory_iterator(folder_, error))
      if (entry.is_regular_file(error) && obsolete(entry.path().filename().string())) found.push_back(entry.path());
    for (std::filesystem::path const& file : found) std::filesystem::remove(file, error);
  }

  /// Throws InputError if `file` exists and is not a regular file, or is one of `inputs`.
  static void require_free(std::filesystem::path const& file, std::vector<std::filesystem::path> const& inputs) {
    std::error_code error;
    auto const status = std::filesystem::status(file, error);
    if (!std::filesystem::exists(status)) return;
    if (!std::filesystem::is_regular_file(status))
      throw InputError(file.string() + ": exists and is not a regular file; accepted: a name that can be written");
    for (std::filesystem::path const& input : inputs)
      if (!input.empty() && std::filesystem::equivalent(file, input, error))
        throw InputError(file.string() +
                         ": is an input, which a result would overwrite; accepted: another name or folder");
  }

 private:
  [[noreturn]] void fail(std::string const& reason) const {
    throw InputError(folder_.string() + ": " + reason + "; accepted: a folder that can be written, or created");
  }

  /// Retries, because another run may remove the folder or its parents between the two steps.
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
          for (RemovedUnlessKept& folder : created_) folder.keep();  // the other run needs them
          throw InputError(folder_.string() +
                           ": another run writes there now; accepted: another folder, or a later time");
        case FolderLock::Outcome::unreadable:
          fail("cannot be read (" + detail::reason_of(errno) + ")");
        case FolderLock::Outcome::gone:
          remove_created();
          error = ENOENT;
      }
    }
    fail("cannot be created (" + detail::reason_of(error) + ")");
  }

  /// Creates the missing folders. Returns 0, or the errno of the one that could not be created.
  int create() {
    std::error_code error;
    auto const status = std::filesystem::status(folder_, error);  // queried once: another run may create it meanwhile
    if (std::filesystem::is_directory(status)) return 0;
    if (std::filesystem::exists(status)) fail("is not a folder");
    std::filesystem::path missing;
    for (std::filesystem::path const& part : folder_) {
      missing /= part;
      if (std::filesystem::is_directory(missing, error)) continue;
      RemovedUnlessKept created(missing.string(), RemovedUnlessKept::Kind::folder,
                                [](char const* path) { return ::mkdir(path, 0777) == 0; });
      if (created)
        created_.push_back(std::move(created));
      else if (int const reason = errno; reason != EEXIST || !std::filesystem::is_directory(missing, error))
        return reason;
    }
    return 0;
  }

  /// Removes the folders that this object created, except those that are not empty.
  void remove_created() noexcept {
    while (!created_.empty()) created_.pop_back();
  }

  std::filesystem::path folder_;
  std::shared_ptr<FolderLock> lock_;
  std::vector<RemovedUnlessKept> created_;
};

/// True if two paths name one file, which need not exist.
inline bool name_one_file(std::filesystem::path const& a, std::filesystem::path const& b) {
  std::error_code error;
  auto const resolved = [&](std::filesystem::path const& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  return resolved(a) == resolved(b);
}

/// Writes a file by write(stream), under its final name only when it is complete. Throws InputError as require_free()
/// does, and std::runtime_error with the system's reason.
template <class Write>
void write_file(std::filesystem::path const& path, std::vector<std::filesystem::path> const& inputs, Write&& write) {
  OutputFolder::require_free(path, inputs);
  PendingFile file(path);
  write(file.stream());
  file.close();
  file.commit();
}

}  // namespace annulus_command
