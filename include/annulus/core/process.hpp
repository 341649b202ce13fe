#pragma once
// Singletons of the process, which a forked child creates anew.

#include <atomic>
#include <memory>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace annulus {

/// The T of this process: created by the first call of get(), and never destroyed, because threads may use it until the
/// process exits. get() is thread-safe and takes no lock.
///
/// fork() copies one thread of a process but all of its memory. Another thread may have held a lock of the parent's T
/// or been modifying it; in the child that lock is never released and that change never completed. So a child never
/// uses its parent's T: its first get() creates a new one.
///
/// All shared libraries of a process share the same T, even those built with hidden symbols, if T itself is visible.
template <class T>
class [[gnu::visibility("default")]] PerProcess {
 public:
  /// The T of this process.
  static T& get() {
    Place* place = current_.load(std::memory_order_acquire);
    if (place) return place->value;
    auto fresh = std::make_unique<Place>();
    fresh->inherited = inherited_.load(std::memory_order_relaxed);
    forget_at_fork();
    if (!current_.compare_exchange_strong(place, fresh.get(), std::memory_order_acq_rel)) return place->value;
    return fresh.release()->value;
  }

 private:
  struct Place {
    T value;
    Place* inherited = nullptr;  ///< T of the parent process, kept reachable so that leak checkers do not report it
  };

  /// Runs in a forked child, before fork() returns.
  static void forget() {
    if (Place* const place = current_.exchange(nullptr)) inherited_ = place;
  }

  /// Threads that create the first T concurrently may each register forget(); running it twice is harmless.
  static void forget_at_fork() {
#if defined(__unix__) || defined(__APPLE__)
    if (!forgets_at_fork_.load(std::memory_order_acquire) && pthread_atfork(nullptr, nullptr, forget) == 0)
      forgets_at_fork_.store(true, std::memory_order_release);
#endif
  }

  static inline constinit std::atomic<Place*> current_{nullptr}, inherited_{nullptr};
  static inline constinit std::atomic<bool> forgets_at_fork_{false};
};

}  // namespace annulus
