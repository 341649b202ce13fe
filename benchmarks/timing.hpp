#pragma once
// Timing on a machine that is shared with other load.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <thread>
#include <vector>

namespace annulus_bench {

struct Elapsed {
  double wall = 0;  ///< seconds
  double cpu = 0;   ///< seconds of all threads of the process

  /// The time to report for work on `threads` threads. For one thread, which never waits, its CPU time: it excludes
  /// other load on the core.
  double seconds(int threads) const { return threads == 1 ? cpu : wall; }
};

class Stopwatch {
 public:
  Elapsed elapsed() const {
    return {std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_).count(), cpu_seconds() - cpu_};
  }

 private:
  static double cpu_seconds() {
    std::timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  std::chrono::steady_clock::time_point wall_ = std::chrono::steady_clock::now();
  double cpu_ = cpu_seconds();
};

template <class Function>
Elapsed elapsed_in(Function&& function) {
  Stopwatch const stopwatch;
  function();
  return stopwatch.elapsed();
}

/// Time of part(thread) on `threads` threads at once, from when all have started to when all have ended.
template <class Part>
Elapsed elapsed_on(int threads, Part const& part) {
  std::atomic<int> missing = threads, running = threads;
  auto const run = [&](int thread) {
    for (--missing; missing.load() > 0;) std::this_thread::yield();
    part(thread);
    --running;
  };
  std::vector<std::jthread> others;
  try {
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  } catch (...) {
    missing = 0;  // those that run must not wait for a thread that the system refuses
    throw;
  }
  while (missing.load() > 1) std::this_thread::yield();
  return elapsed_in([&] {
    run(0);
    while (running.load() > 0) std::this_thread::yield();
  });
}

/// Median of `values`; 0 if there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto const middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace annulus_bench
