#pragma once
// Files that appear under their name only when they are complete, and the removal of files and folders that are not
// kept: by their destructor, or when a signal ends the command.

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include "errors.hpp"
#include "output_stream.hpp"

namespace annulus_command {

namespace detail {

/// Signals that end the command and whose handler can clean up.
inline constexpr std::array ending_signals{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU};

inline sigset_t ending_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : ending_signals) sigaddset(&set, signal);
  return set;
}

/// A file or folder to remove, in a linked list.
struct Removal {
  std::string path;
  bool folder;
  Removal* newer = nullptr;
  Removal* older = nullptr;

  void remove() const noexcept { folder ? ::rmdir(path.c_str()) : ::unlink(path.c_str()); }
};

/// State shared with the signal handler.
struct Removals {
  std::atomic_flag locked = ATOMIC_FLAG_INIT;
  Removal* newest = nullptr;
  int deferrals = 0;
  int deferred_signal = 0;
};
inline Removals removals;

/// Exclusive access to the list. Blocks the signals of this thread, because the handler waits for the same lock and
/// must not interrupt its holder. Nothing may be allocated while it is held: the interrupted thread may hold the
/// allocator's lock.
class RemovalsLock {
 public:
  RemovalsLock() {
    sigset_t const set = ending_signal_set();
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    while (removals.locked.test_and_set(std::memory_order_acquire)) {
    }
  }
  RemovalsLock(RemovalsLock const&) = delete;
  RemovalsLock& operator=(RemovalsLock const&) = delete;
  ~RemovalsLock() {
    removals.locked.clear(std::memory_order_release);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_;
};

/// Ignored signals, recorded by note_ignored_signals().
inline sigset_t ignored_signals;

/// Records which signals are ignored. Runs before the constructors of shared libraries where the platform allows it, as
/// UCX, which Open MPI may load, replaces the action of SIGHUP in its own.
inline void note_ignored_signals() {
  sigemptyset(&ignored_signals);
  for (int signal : ending_signals) {
    struct sigaction before {};
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) sigaddset(&ignored_signals, signal);
  }
}

/// Signal handler: removes what is not kept, newest first, and ends the process by the same signal. Calls only
/// async-signal-safe functions.
inline void on_ending_signal(int signal) {
  int const error = errno;
  while (removals.locked.test_and_set(std::memory_order_acquire)) {
  }
  if (removals.deferrals > 0) {
    removals.deferred_signal = signal;
    removals.locked.clear(std::memory_order_release);
    errno = error;
    return;
  }
  for (Removal const* removal = removals.newest; removal; removal = removal->older) removal->remove();
  // The lock stays held, so that nothing new is created before the process ends.
  std::signal(signal, SIG_DFL);
  sigset_t const set = ending_signal_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(signal);
}

}  // namespace detail

/// Installs the signal handlers. Called once, at the start of the command. Signals that note_ignored_signals()
/// recorded stay ignored.
/// Writing to a closed pipe or beyond the file size limit becomes a write error instead of a signal.
inline void clean_up_on_signals() {
  struct sigaction action {};
  action.sa_handler = detail::on_ending_signal;
  action.sa_mask = detail::ending_signal_set();
  for (int signal : detail::ending_signals)
    if (sigismember(&detail::ignored_signals, signal))
      std::signal(signal, SIG_IGN);
    else
      sigaction(signal, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// Defers signals that would end the command, for its lifetime.
class SignalsDeferred {
 public:
  SignalsDeferred() {
    detail::RemovalsLock const lock;
    ++detail::removals.deferrals;
  }
  SignalsDeferred(SignalsDeferred const&) = delete;
  SignalsDeferred& operator=(SignalsDeferred const&) = delete;
  ~SignalsDeferred() {
    int signal = 0;
    {
      detail::RemovalsLock const lock;
      if (--detail::removals.deferrals == 0) signal = std::exchange(detail::removals.deferred_signal, 0);
    }
    if (signal != 0) std::raise(signal);
  }
};

/// Owns a new file or an empty folder: the destructor removes it unless keep() was called.
class RemovedUnlessKept {
 public:
  enum class Kind { file, folder };

  /// Creates it with make(path), which may only make system calls. If it returns false, nothing was created, and errno
  /// says why.
  template <class Make>
  RemovedUnlessKept(std::string path, Kind kind, Make&& make)
      : removal_(std::make_unique<detail::Removal>(detail::Removal{std::move(path), kind == Kind::folder})) {
    bool made = false;
    {
      detail::RemovalsLock const lock;
      made = make(removal_->path.c_str());
      if (made) link();
    }
    if (!made) drop();
  }
  RemovedUnlessKept() = default;
  RemovedUnlessKept(RemovedUnlessKept&&) noexcept = default;
  RemovedUnlessKept& operator=(RemovedUnlessKept&& other) noexcept {
    std::swap(removal_, other.removal_);
    return *this;
  }
  ~RemovedUnlessKept() {
    if (!removal_) return;
    removal_->remove();
    keep();
  }

  /// True if it was created and is not kept yet.
  explicit operator bool() const { return removal_ != nullptr; }
  std::string const& path() const { return removal_->path; }

  void keep() noexcept {
    if (!removal_) return;
    {
      detail::RemovalsLock const lock;
      (removal_->newer ? removal_->newer->older : detail::removals.newest) = removal_->older;
      if (removal_->older) removal_->older->newer = removal_->newer;
    }
    removal_.reset();
  }

 private:
  void link() noexcept {
    removal_->older = detail::removals.newest;
    if (removal_->older) removal_->older->newer = removal_.get();
    detail::removals.newest = removal_.get();
  }

  void drop() noexcept {
    int const error = errno;
    removal_.reset();
    errno = error;
  }

  std::unique_ptr<detail::Removal> removal_;
};

namespace detail {

inline std::string file_message(std::filesystem::path const& path, std::string const& reason) {
  return path.string() + ": cannot be written (" + reason +
         "); accepted is a name in an existing folder that can be written, on a disk with free space";
}

inline std::string reason_of(int error) { return std::generic_category().message(error); }

/// fsync. Returns 0 or an errno; 0 on file systems without fsync.
inline int synchronize(int descriptor) {
  if (::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP) return 0;
  return errno;
}

/// Makes renames and removals in a folder durable. Returns 0 or an errno; 0 if the folder cannot be opened.
inline int synchronize_folder(std::filesystem::path const& folder) {
  int const descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return 0;
  int const error = synchronize(descriptor);
  ::close(descriptor);
  return error;
}

}  // namespace detail

/// A file under a temporary name in the folder of its final path. commit() renames it; otherwise it is removed, also if
/// a signal ends the command. Write all results of a run before committing them, so that a full disk leaves none.
class PendingFile {
 public:
  /// Creates the temporary file; an existing file is never written into. Throws InputError if `path` cannot be written,
  /// or exists and is not a regular file.
  explicit PendingFile(std::filesystem::path path) : path_(std::move(path)) {
    require_regular_file();
    open();
    buffer_ = std::make_unique<DescriptorBuffer>(descriptor_.value);
    stream_ = std::make_unique<std::ostream>(buffer_.get());
  }
  PendingFile(PendingFile&&) noexcept = default;
  PendingFile& operator=(PendingFile&&) noexcept = default;

  /// Valid until close().
  std::ostream& stream() { return *stream_; }

  /// Throws std::runtime_error with the system's reason.
  void write(void const* data, std::size_t bytes) {
    if (!buffer_->write(static_cast<char const*>(data), bytes)) fail(detail::reason_of(buffer_->error()));
  }

  /// Flushes the file to the disk and closes it. Throws std::runtime_error with the system's reason.
  void close() {
    write(nullptr, 0);
    stream_.reset();
    buffer_.reset();
    int error = detail::synchronize(descriptor_.value);
    if (::close(std::exchange(descriptor_.value, -1)) != 0 && error == 0) error = errno;
    if (error != 0) fail(detail::reason_of(error));
  }

  /// Renames the closed file to its final path, replacing an existing file atomically. Throws std::runtime_error;
  /// std::logic_error if it is open, moved from or committed.
  void commit() {
    if (!temporary_ || descriptor_.value >= 0)
      throw std::logic_error("commit() of a file that is open, was moved away or is committed");
    if (::rename(temporary_.path().c_str(), path_.c_str()) != 0) fail(detail::reason_of(errno));
    temporary_.keep();
    if (int const error = detail::synchronize_folder(path_.parent_path())) fail(detail::reason_of(error));
  }

  std::filesystem::path const& path() const { return path_; }

 private:
  struct Descriptor {
    int value = -1;

    Descriptor() = default;
    Descriptor(Descriptor&& other) noexcept : value(std::exchange(other.value, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(value, other.value);
      return *this;
    }
    ~Descriptor() {
      if (value >= 0) ::close(value);
    }
  };

  [[noreturn]] void fail(std::string const& reason) const {
    throw std::runtime_error(detail::file_message(path_, reason));
  }

  [[noreturn]] void refuse(std::string const& reason) const { throw InputError(detail::file_message(path_, reason)); }

  /// Refuses other paths, because a rename would replace a device or a pipe.
  void require_regular_file() const {
    if (!path_.has_filename()) refuse("it is not the name of a file");
    std::error_code error;
    auto const status = std::filesystem::status(path_, error);
    if (!std::filesystem::exists(status)) return;
    if (!std::filesystem::is_regular_file(status))
      refuse(std::filesystem::is_directory(status) ? "it is a folder" : "it exists and is not a regular file");
  }

  void open() {
    std::random_device device;
    for (int attempt = 0; attempt < 16; ++attempt) {
      char name[48];
      std::snprintf(name, sizeof name, ".annulus-%08x%08x.partial", device(), device());
      temporary_ = RemovedUnlessKept(
          (path_.parent_path() / name).string(), RemovedUnlessKept::Kind::file, [&](char const* candidate) {
            descriptor_.value = ::open(candidate, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
            return descriptor_.value >= 0;
          });
      if (temporary_) return;
      if (errno != EEXIST) break;
    }
    refuse(detail::reason_of(errno));
  }

  std::filesystem::path path_;
  RemovedUnlessKept temporary_;
  Descriptor descriptor_;
  std::unique_ptr<DescriptorBuffer> buffer_;
  std::unique_ptr<std::ostream> stream_;
};

/// Commits a set of closed files. The last one marks the set as complete: an older file of its name is removed before
/// any other is replaced, and it is renamed last. `outdated`: files of an older set, which are removed as well if they
/// exist. Signals are deferred meanwhile. Throws std::runtime_error.
inline void commit_together(std::span<PendingFile> files, std::span<std::filesystem::path const> outdated = {}) {
  if (files.empty()) return;
  SignalsDeferred const deferred;
  std::filesystem::path const& last = files.back().path();
  auto const remove = [](std::filesystem::path const& path) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      throw std::runtime_error(detail::file_message(path, detail::reason_of(errno)));
  };
  remove(last);
  for (std::filesystem::path const& path : outdated) remove(path);
  if (int const error = detail::synchronize_folder(last.parent_path()))
    throw std::runtime_error(detail::file_message(last, detail::reason_of(error)));
  for (PendingFile& file : files) file.commit();
}

}  // namespace annulus_command
