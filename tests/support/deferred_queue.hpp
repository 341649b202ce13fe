#pragma once
// Queue whose work is executed later, in order, on a separate thread: models the stream of a device. Work that may be
// done at any time between two places of the order, such as a transfer, is done between two others, chosen at random.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace annulus_test {

struct DeferralOptions {
  enum When {
    delayed,  ///< each work item starts some time after the previous one has ended
    lazy,     ///< nothing starts before drain(), so that a missing wait leaves results unwritten
  };
  When when = delayed;
  std::uint64_t seed = 0;
  /// Longest delay before a work item; half of them have none.
  std::chrono::microseconds longest_delay{50};
};

/// One thread submits work and drains; another one executes it. After a failure, later work is skipped.
class DeferredQueue {
 public:
  explicit DeferredQueue(DeferralOptions const& options)
      : options_(options), dice_(options.seed), thread_([this] { work(); }) {}
  DeferredQueue(DeferredQueue const&) = delete;
  DeferredQueue& operator=(DeferredQueue const&) = delete;

  /// Drains; failures since the last drain() are discarded.
  ~DeferredQueue() {
    {
      std::lock_guard const lock(mutex_);
      released_ = ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  /// `place`: where among the work that has not begun, an error that tests plant; by default after all of it.
  void push(std::function<void()> piece, std::optional<std::size_t> place = {}) {
    {
      std::lock_guard const lock(mutex_);
      auto const offset = static_cast<std::ptrdiff_t>(std::min(place.value_or(waiting_.size()), waiting_.size()));
      waiting_.insert(waiting_.begin() + offset, std::move(piece));
    }
    changed_.notify_all();
  }

  /// Called by a work item: `attempt` is called before each later item, until it returns true.
  void attempt_between(std::function<bool()> attempt) { attempts_.push_back(std::move(attempt)); }

  /// Waits until all work is done. Rethrows the exception of the first failed work item; later items were skipped.
  void drain() {
    std::vector<std::function<void()>> skipped;  // destroyed last, without the lock
    std::unique_lock lock(mutex_);
    ++drains_;
    released_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
    released_ = false;
    skipped.swap(skipped_before_);
    skipped_before_.swap(skipped_);
    if (auto const failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
  }

  /// Number of calls of drain().
  int drains() const {
    std::lock_guard const lock(mutex_);
    return drains_;
  }

  /// Number of work items not done yet.
  std::size_t pending() const {
    std::lock_guard const lock(mutex_);
    return waiting_.size() + (busy_ ? 1 : 0);
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] {
        return (!waiting_.empty() && (released_ || options_.when == DeferralOptions::delayed)) || ending_;
      });
      if (waiting_.empty()) return;
      auto piece = std::move(waiting_.front());
      waiting_.pop_front();
      if (failure_) {
        // Kept until the failure has been thrown and handled: what pieces own may notify other ranks when it ends.
        skipped_.push_back(std::move(piece));
      } else {
        busy_ = true;
        lock.unlock();
        std::exception_ptr const failure = carry_out(piece);
        piece = nullptr;
        lock.lock();
        failure_ = failure;
        if (failure) skipped_.push_back([attempts = std::exchange(attempts_, {})] {});
        busy_ = false;
      }
      changed_.notify_all();
    }
  }

  std::exception_ptr carry_out(std::function<void()> const& piece) {
    if (options_.when == DeferralOptions::delayed) delay();
    try {
      for (std::size_t a = 0; a < attempts_.size();)
        if (attempts_[a]())
          attempts_.erase(attempts_.begin() + static_cast<std::ptrdiff_t>(a));
        else
          ++a;
      piece();
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  void delay() {
    auto const longest = static_cast<std::uint64_t>(options_.longest_delay.count());
    if (longest != 0 && dice_() % 2 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(dice_() % (longest + 1)));
  }

  DeferralOptions options_;
  std::mt19937_64 dice_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  std::vector<std::function<void()>> skipped_, skipped_before_;  ///< since the last drain(), and before it
  std::vector<std::function<bool()>> attempts_;                  ///< used by the executing thread alone
  int drains_ = 0;
  bool busy_ = false, released_ = false, ending_ = false;
  std::exception_ptr failure_;
  std::thread thread_;  // last: starts when all other members are initialised
};

}  // namespace annulus_test
