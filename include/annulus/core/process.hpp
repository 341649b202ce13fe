#pragma once
// State of the process: singletons that a forked child creates anew, and the CPU cores that the process may use.

#include <algorithm>
#include <atomic>
#include <bitset>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
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

/// Set of core numbers of one machine. Trivially copyable, so that processes can exchange it.
class CoreSet {
 public:
  static constexpr int capacity = 1024;

  /// Cores that this process is bound to, by mpirun or a container; all cores where no binding is known.
  static CoreSet of_process() {
    CoreSet cores;
#if defined(__linux__)
    cpu_set_t bound;
    if (sched_getaffinity(0, sizeof bound, &bound) == 0)
      for (int core = 0; core < std::min<int>(capacity, CPU_SETSIZE); ++core)
        if (CPU_ISSET(core, &bound)) cores.add(core);
    if (cores.count() > 0) return cores;
#endif
    int const all = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, capacity);
    for (int core = 0; core < all; ++core) cores.add(core);
    return cores;
  }

  void add(int core) { cores_.set(static_cast<std::size_t>(core)); }
  bool has(int core) const { return cores_.test(static_cast<std::size_t>(core)); }
  int count() const { return static_cast<int>(cores_.count()); }

 private:
  std::bitset<capacity> cores_;
};

/// Number of cores for each process where several are bound to the same ones: each core goes to the process bound to it
/// that has the fewest so far. At least 1, even for more processes than cores.
inline std::vector<int> divide_cores(std::span<CoreSet const> processes) {
  std::vector<int> shares(processes.size(), 0);
  for (int core = 0; core < CoreSet::capacity; ++core) {
    int* fewest = nullptr;
    for (std::size_t p = 0; p < processes.size(); ++p)
      if (processes[p].has(core) && (!fewest || shares[p] < *fewest)) fewest = &shares[p];
    if (fewest) ++*fewest;
  }
  for (int& cores : shares) cores = std::max(cores, 1);
  return shares;
}

/// Number of cores that this process may use: those it is bound to, until a communicator lowers it because other
/// processes are bound to the same ones. Thread-safe.
class [[gnu::visibility("default")]] ProcessCores {
 public:
  /// Constant-initialised, because fork() could copy a held initialisation lock. A child keeps its parent's count.
  static ProcessCores& shared() {
    static constinit ProcessCores cores;
    return cores;
  }

  /// At least 1. Determined by the first call.
  int count() const {
    int known = count_.load(std::memory_order_relaxed);
    if (known != unknown) return known;
    int const bound = CoreSet::of_process().count();
    return count_.compare_exchange_strong(known, bound, std::memory_order_relaxed) ? bound : known;
  }

  /// Lowers count() to at most `cores`.
  void limit(int cores) {
    for (int now = count(); cores < now && !count_.compare_exchange_weak(now, cores, std::memory_order_relaxed);) {
    }
  }

 private:
  static constexpr int unknown = 0;
  mutable std::atomic<int> count_{unknown};
};

}  // namespace annulus
