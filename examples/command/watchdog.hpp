#pragma once
// A deadline for calls that have none of their own.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "exit_status.hpp"

namespace annulus_command {

/// While it lives, the process must not run for longer than `limit`: otherwise it prints `line` and ends with status 1,
/// without running anything that could wait again. Time in which the process was stopped does not count, so that of
/// several processes the one that was stopped does not blame the others once it is continued.
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds limit, std::string line)
      : thread_([limit, line = std::move(line)](std::stop_token const& ended) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          constexpr std::chrono::milliseconds most(100);
          for (std::chrono::milliseconds left = limit; left.count() > 0; left -= most) {
            never.wait_for(lock, ended, std::min(left, most), [] { return false; });
            if (ended.stop_requested()) return;
          }
          std::fprintf(stderr, "annulus: %s\n", line.c_str());
          std::_Exit(failed);
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace annulus_command
