#pragma once
// Deadline for calls that have no timeout of their own.

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

/// Prints `line` and ends the process with status 1 if it exists for longer than `limit`; runs no destructors or exit
/// handlers, which could block again. Time in which the process is stopped does not count, so that a stopped process
/// does not blame the others once it is continued.
class Watchdog {
 public:
  Watchdog(std::chrono::milliseconds limit, std::string line)
      : thread_([limit, line = std::move(line)](std::stop_token const& ended) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any never;
          constexpr std::chrono::milliseconds interval(100);
          for (std::chrono::milliseconds left = limit; left.count() > 0; left -= interval) {
            never.wait_for(lock, ended, std::min(left, interval), [] { return false; });
            if (ended.stop_requested()) return;
          }
          std::fprintf(stderr, "annulus: %s\n", line.c_str());
          std::_Exit(failed);
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace annulus_command
