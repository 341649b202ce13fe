#pragma once
// Polling timer of a rank that waits over MPI: it polls less and less often, until a deadline.

#include <algorithm>
#include <chrono>
#include <thread>

namespace annulus::detail {

/// Pauses between polls of one wait. Spins first, then yields, because ranks may outnumber cores, and sleeps after a
/// while, so that a rank that waits for long leaves its core to others.
class PollingTimer {
 public:
  using Clock = std::chrono::steady_clock;

  /// The polled medium. Shared memory changes without this rank's help; messages advance only while their receiver
  /// polls, so a rank that waits for messages starts to sleep later and sleeps for shorter times.
  enum class Of { shared_memory, messages };

  explicit PollingTimer(Of what) : what_(what) {}

  /// Pauses before the next poll.
  void pause() {
    constexpr int spins = 16, yields_between_clock_reads = 64;
    if (++polls_ <= spins) return;
    if (sleep_.count() == 0) {
      std::this_thread::yield();
      if (polls_ % yields_between_clock_reads != 0) return;
    } else {
      std::this_thread::sleep_for(sleep_);
    }
    sleep_ = sleep_after(Clock::now() - start_);
  }

  Clock::time_point start() const { return start_; }
  bool exceeds(std::chrono::milliseconds limit) const {
    // Compares in milliseconds: a limit of milliseconds::max() would overflow the clock's own unit.
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_) >= limit;
  }

 private:
  std::chrono::microseconds sleep_after(Clock::duration waited) const {
    using namespace std::chrono_literals;
    if (what_ == Of::messages) return waited < 1s ? 0us : 100us;
    if (waited < 5ms) return 0us;
    return std::min<std::chrono::microseconds>(std::chrono::duration_cast<std::chrono::microseconds>(waited) / 64, 1ms);
  }

  Of what_;
  Clock::time_point start_ = Clock::now();
  std::chrono::microseconds sleep_{0};
  int polls_ = 0;
};

}  // namespace annulus::detail
