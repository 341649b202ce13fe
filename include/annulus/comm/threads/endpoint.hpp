#pragma once
// One rank's end of a ring whose ranks are threads of one process: all-gathers, waits with a deadline, and shutdown,
// under a lock that all ranks share. Base of the ends of simulated rings and rings of GPUs.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/ring_failure.hpp"

namespace annulus::detail {

class ThreadEndpoint;

/// State of a ring that all ranks use.
struct ThreadRing {
  /// The contribution of a rank to an all-gather.
  struct Record {
    std::vector<std::byte> bytes;
    std::uint64_t round = UINT64_MAX;
  };

  /// A wait polls for `polled` before it sleeps, and fails after `longest_wait`.
  ThreadRing(int size, std::chrono::milliseconds longest_wait, std::chrono::microseconds polled)
      : timeout(longest_wait), polling(polled) {
    for (auto& records : gathered) records.resize(static_cast<std::size_t>(size));
  }

  // Constant once the ring is constructed.
  std::chrono::milliseconds const timeout;
  std::chrono::microseconds const polling;
  std::vector<std::unique_ptr<ThreadEndpoint>> ranks;
  std::vector<Rank> near_ranks;  ///< for every rank the first rank that is near it

  std::mutex mutex;
  // Guarded by the mutex.
  std::array<std::vector<Record>, 2> gathered;  ///< by parity of the round: one record of each rank
  std::optional<RingFailure> failure;           ///< the failure that closed the ring
  Rank closer = CommunicationError::unknown;    ///< the rank that closed it
};

/// Storage is reused, so a repeated exchange allocates nothing. Closing the ring never allocates.
///
/// Concurrency. Each rank has one thread; "the lock" is ThreadRing::mutex.
///  * all_gather, leave, flight_record: called by the thread of the rank. The first two take the lock.
///  * abandon: called by the rank's thread, or by the thread that could not start it; takes the lock.
///  * rank, size, near_ranks: called by any thread; what they read is constant.
///  * require_open: called with the lock held, or after the failure was thrown, which is never changed.
///  * wait, status, close, fail, notify_all: called with the lock held; wait releases it meanwhile.
class ThreadEndpoint {
 public:
  ThreadEndpoint(ThreadRing& ring, Rank rank) : ring_(ring), rank_(rank) {}
  virtual ~ThreadEndpoint() = default;

  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(ring_.ranks.size()); }
  FlightRecord& flight_record() { return record_; }
  std::span<Rank const> near_ranks() const { return ring_.near_ranks; }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    or_close([&] { gather(mine, all); });
  }

  /// Closes the ring: from now on every wait that is not yet satisfied fails and blames `culprit`.
  void abandon(std::string_view reason, Rank culprit) noexcept {
    std::lock_guard const lock(ring_.mutex);
    close(RingFailure::abandoned(rank_, reason, culprit));
  }

  /// Throws the failure that closed the ring, if it is closed.
  void require_open() const {
    if (ring_.failure) ring_.failure->raise(rank_);
  }

  /// Records that this rank has left the ring; from then on, waits for this rank fail.
  void leave() noexcept {
    std::lock_guard const lock(ring_.mutex);
    left_ = true;
    notify_all();
  }

 protected:
  /// Closes the ring if function() fails: a half-posted exchange would match a later one.
  template <class Function>
  std::invoke_result_t<Function&> or_close(Function&& function) {
    try {
      return function();
    } catch (CommunicationError const&) {
      throw;
    } catch (std::exception const& error) {
      ThreadEndpoint::abandon(error.what(), rank_);
      throw;
    }
  }

  ThreadEndpoint& of(Rank rank) const { return *ring_.ranks[static_cast<std::size_t>(rank)]; }

  void notify_all() {
    for (auto const& rank : ring_.ranks) rank->changed_.notify_all();
  }

  void close(RingFailure const& failure) noexcept {
    if (!ring_.failure) {
      ring_.failure = failure;
      ring_.closer = rank_;
    }
    notify_all();
  }

  /// Closes the ring because of an error in what this rank has received from `from`, and throws.
  [[noreturn]] void fail(std::string_view complaint, Rank from) {
    fail(RingFailure::received(rank_, complaint, from, from));
  }
  [[noreturn]] void fail(RingFailure const& failure) {
    close(failure);
    ring_.failure->raise(rank_);
  }

  /// Waits for the ranks for which is_missing(rank) holds, until there is none. Throws CommunicationError if the ring
  /// is or becomes closed, and closes it if one of these ranks has returned or the deadline has passed.
  template <class IsMissing>
  void wait(std::unique_lock<std::mutex>& lock, Awaited const& what, IsMissing is_missing) {
    constexpr Rank none = CommunicationError::unknown;
    Rank returned = none;
    auto const is_over = [&] {
      awaited_ = first_rank(size(), is_missing);
      if (awaited_ == none || ring_.failure) return true;
      returned = first_returned(is_missing);
      return returned != none;
    };
    awaited_what_ = what;
    auto const start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < ring_.polling && !is_over()) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    // Clamped, because milliseconds::max() would overflow the clock's own unit.
    auto const timeout = std::min<std::chrono::milliseconds>(ring_.timeout, std::chrono::years(100));
    if (!changed_.wait_until(lock, start + timeout, is_over)) close(report());
    if (std::exchange(awaited_, none) == none) return;
    if (!ring_.failure) close(RingFailure::returned(rank_, returned, what.view()));
    ring_.failure->raise(rank_);
  }

  /// What this rank does, for the report of another one's timeout.
  virtual RankStatus status() const {
    return left_ ? RankStatus{.kind = RankStatus::Kind::returned}
                 : RankStatus::of(awaited_, awaited_what_.view(), record_);
  }

  /// The report of a timeout of this rank, which waits: which rank waits for which.
  RingFailure report() const noexcept {
    try {
      std::vector<RankStatus> statuses;
      for (auto const& one : ring_.ranks) statuses.push_back(one->status());
      return hang_report(statuses, rank_, ring_.timeout);
    } catch (std::exception const&) {  // no memory for the statuses of all ranks
      return RingFailure::late(rank_, awaited_, awaited_what_.view(), ring_.timeout);
    }
  }

  // Constant.
  ThreadRing& ring_;
  Rank rank_;
  // Written by this rank's thread, which another one may read, with the lock, to report a timeout.
  FlightRecord record_;
  // Guarded by the lock.
  std::condition_variable changed_;             ///< only this rank's thread waits for it, all notify it
  Rank awaited_ = CommunicationError::unknown;  ///< in the current wait
  Awaited awaited_what_{};
  bool left_ = false;

 private:
  /// all_gather(), in a ring that is closed if this fails.
  void gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    std::uint64_t const round = rounds_++;
    // A rank that begins a round has read the records of the one before, so two sets of records are enough.
    auto& records = ring_.gathered[round % 2];
    std::unique_lock lock(ring_.mutex);
    require_open();
    auto const of_rank = [&](Rank rank) -> auto& { return records[static_cast<std::size_t>(rank)]; };
    of_rank(rank_).bytes.assign(mine.begin(), mine.end());
    of_rank(rank_).round = round;
    auto const is_missing = [&](Rank rank) { return of_rank(rank).round != round; };
    if (first_rank(size(), is_missing) == CommunicationError::unknown) notify_all();
    wait(lock, Awaited("all-gather"), is_missing);
    auto const failure = unequal_records(rank_, size(), [&](Rank rank) { return of_rank(rank).bytes.size(); });
    if (failure) fail(*failure);
    for (Rank rank = 0; rank < size(); ++rank)
      std::copy_n(of_rank(rank).bytes.begin(), mine.size(), all.begin() + rank * static_cast<Index>(mine.size()));
    record_.advance();
  }

  /// The first of these ranks that has returned.
  template <class Matches>
  Rank first_returned(Matches matches) const {
    return first_rank(size(), [&](Rank rank) { return matches(rank) && of(rank).left_; });
  }

  std::uint64_t rounds_ = 0;  ///< used by this rank's thread alone
};

}  // namespace annulus::detail
