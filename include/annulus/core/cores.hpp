#pragma once
// The cores that this process may keep busy.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace annulus {

/// Cores of a machine, by number. Plain bytes, so that processes can tell each other.
class CoreSet {
 public:
  static constexpr int capacity = 1024;

  /// What this process is bound to, by mpirun or a container; else all cores.
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

  void add(int core) { words_[static_cast<std::size_t>(core / 64)] |= std::uint64_t{1} << (core % 64); }
  bool has(int core) const { return (words_[static_cast<std::size_t>(core / 64)] >> (core % 64) & 1) != 0; }
  int count() const {
    return std::accumulate(words_.begin(), words_.end(), 0,
                           [](int sum, auto word) { return sum + std::popcount(word); });
  }

 private:
  std::array<std::uint64_t, capacity / 64> words_{};
};

/// How many cores each process gets where processes are bound to the same ones: every core goes to the one that has the
/// fewest so far. At least 1, where there are more processes than cores.
inline std::vector<int> divide_cores(std::span<CoreSet const> processes) {
  std::vector<int> dealt(processes.size(), 0);
  for (int core = 0; core < CoreSet::capacity; ++core) {
    int* fewest = nullptr;
    for (std::size_t p = 0; p < processes.size(); ++p)
      if (processes[p].has(core) && (!fewest || dealt[p] < *fewest)) fewest = &dealt[p];
    if (fewest) ++*fewest;
  }
  for (int& cores : dealt) cores = std::max(cores, 1);
  return dealt;
}

/// The share of this process: the cores it is bound to, until a communicator learns which other processes are bound to
/// them. All threads may call it.
class [[gnu::visibility("default")]] ProcessCores {
 public:
  /// Constant initialisation takes no lock, which a child forked meanwhile would find taken. A child keeps the share of
  /// its parent.
  static ProcessCores& shared() {
    static constinit ProcessCores cores;
    return cores;
  }

  int count() const {
    int known = count_.load(std::memory_order_relaxed);
    if (known != unknown) return known;
    int const bound = CoreSet::of_process().count();
    return count_.compare_exchange_strong(known, bound, std::memory_order_relaxed) ? bound : known;
  }

  /// From now on at most `cores`.
  void limit(int cores) {
    for (int now = count(); cores < now && !count_.compare_exchange_weak(now, cores, std::memory_order_relaxed);) {
    }
  }

 private:
  static constexpr int unknown = 0;
  mutable std::atomic<int> count_{unknown};  ///< asked for at first use
};

}  // namespace annulus
