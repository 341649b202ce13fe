#pragma once
// Objects of which each process has its own, also one that was forked.

#include <atomic>
#include <memory>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace annulus {

/// The T of this process: made by the first call of get(), and never destroyed, as threads may use it to the end. All
/// threads may call get(), which takes no lock.
///
/// fork() copies one thread of a process and the memory of all. Another thread may have held a lock of the parent's T or
/// been changing it, and then neither ever ends in the child. So a child never touches its parent's T: its first get()
/// makes a new one.
///
/// All shared libraries of a process have the same T, also those that hide their symbols, if T does not hide its own.
template <class T>
class [[gnu::visibility("default")]] PerProcess {
 public:
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
    Place* inherited = nullptr;  ///< the T of an ancestor: kept reachable, so that it does not count as a leak
  };

  /// Runs in a forked child, before fork() returns.
  static void forget() {
    if (Place* const place = current_.exchange(nullptr)) inherited_ = place;
  }

  /// Threads that make the first T at the same time register forget() each: nothing comes of the second.
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
