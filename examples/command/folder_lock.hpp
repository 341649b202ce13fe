#pragma once
// Exclusive lock on an output folder (flock).

#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace annulus_command
