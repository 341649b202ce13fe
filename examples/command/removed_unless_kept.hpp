#pragma once
// Files and folders that are removed again unless kept: by their destructor, or when a signal ends the command.

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

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

/// Installs the signal handlers. Called once, at the start of the command. Signals that were ignored stay ignored.
/// Writing to a closed pipe or beyond the file size limit becomes a write error instead of a signal.
inline void clean_up_on_signals() {
  struct sigaction action {};
  action.sa_handler = detail::on_ending_signal;
  action.sa_mask = detail::ending_signal_set();
  for (int signal : detail::ending_signals) {
    struct sigaction before {};
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
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

}  // namespace annulus_command
