#pragma once
// Pauses of a rank that polls.

#include <algorithm>
#include <chrono>
#include <thread>

namespace annulus::detail {

/// Pauses between polls of one wait, until a deadline. Spins first, then yields, because ranks may outnumber cores, and
/// sleeps after a while, so that a rank that waits for long leaves its core to others.
class PollingTimer {
 public:
  using Clock = std::chrono::steady_clock;

  /// The polled medium. Shared memory changes without this rank's help; messages advance only while their receiver
  /// polls, so a rank that waits for messages starts to sleep later and sleeps for shorter times. The end of work of a
  /// device ends a call, whose time the pauses must not lengthen.
  enum class Of { shared_memory, messages, device };

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
    using namespace std::chrono_literals;
    auto const waited = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_);
    if (what_ == Of::messages)
      sleep_ = waited < 1s ? 0us : 100us;
    else if (what_ == Of::device)
      sleep_ = waited < 100ms ? 0us : 50us;
    else
      sleep_ = waited < 5ms ? 0us : std::min<std::chrono::microseconds>(waited / 64, 1ms);
  }

  Clock::time_point start() const { return start_; }
  bool exceeds(std::chrono::milliseconds limit) const { return exceeds(start_, limit); }

  /// True if `limit` has passed since `begin`.
  static bool exceeds(Clock::time_point begin, std::chrono::milliseconds limit) {
    // Compares in milliseconds: a limit of milliseconds::max() would overflow the clock's own unit.
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin) >= limit;
  }

 private:
  Of what_;
  Clock::time_point start_ = Clock::now();
  std::chrono::microseconds sleep_{0};
  int polls_ = 0;
};

}  // namespace annulus::detail
