#pragma once
// Simulated ring with a watchdog that closes it if its ranks hang.

#include <annulus/comm/simulated_ring.hpp>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace annulus_test {

/// The ranks of a run that have not ended.
class LivingRanks {
 public:
  void enter(annulus::SimulatedRing& ring) {
    std::lock_guard const lock(mutex_);
    rings_[ring.rank()] = &ring;
  }
  void end(annulus::Rank rank) {
    std::lock_guard const lock(mutex_);
    rings_.erase(rank);
    ++ended_;
    changed_.notify_all();
  }
  /// For a rank that dies: returns when `ranks` ranks have ended, or when the run is ended by force.
  void wait_until_ended(int ranks) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= ranks || forced_; });
  }
  /// Returns true if `ranks` ranks ended before the limit; else closes the ring and returns false.
  bool end_by_force_after(std::chrono::milliseconds limit, int ranks) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, limit, [&] { return ended_ >= ranks; })) return true;
    forced_ = true;
    changed_.notify_all();
    if (!rings_.empty()) rings_.begin()->second->abandon("the test ended a run that hung");
    return false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<annulus::Rank, annulus::SimulatedRing*> rings_;
  int ended_ = 0;
  bool forced_ = false;
};

/// The results of function(ring, living) of all ranks, and true if they had to be ended by force after the limit. The
/// function must not throw.
template <class Function>
auto run_watched(int ranks, annulus::SimulatedRingOptions const& options, std::chrono::milliseconds limit,
                 Function&& function) {
  LivingRanks living;
  bool hung = false;
  std::jthread watch([&] { hung = !living.end_by_force_after(limit, ranks); });
  auto results = annulus::run_ring(
      ranks,
      [&](annulus::SimulatedRing& ring) {
        living.enter(ring);
        auto result = function(ring, living);
        living.end(ring.rank());
        return result;
      },
      options);
  watch.join();
  return std::pair(std::move(results), hung);
}

}  // namespace annulus_test
