#pragma once
// One rank's end of a ring whose ranks are processes of one node: all-gathers, waits with a deadline, and shutdown, in
// memory that the processes share. Base of the end that copies.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "annulus/comm/peer/process_state.hpp"
#include "annulus/comm/polling_timer.hpp"
#include "annulus/comm/ring_failure.hpp"

namespace annulus::detail {

/// Called by the one thread of the rank. Other processes see what is in ProcessState. A rank that waits advances what
/// the others wait for, as they cannot submit work of this process.
class ProcessEndpoint {
 public:
  /// Returns when all ranks have come; throws as MeetingMemory does.
  explicit ProcessEndpoint(PeerMeeting const& meeting)
      : timeout_(meeting.timeout),
        rank_(meeting.rank),
        state_(meeting),
        mine_(state_.of(meeting.rank)),
        near_ranks_(static_cast<std::size_t>(meeting.size), 0) {}
  ProcessEndpoint(ProcessEndpoint const&) = delete;
  virtual ~ProcessEndpoint() = default;

  Rank rank() const { return rank_; }
  int size() const { return state_.size(); }
  FlightRecord& flight_record() { return mine_.record; }
  std::span<Rank const> near_ranks() const { return near_ranks_; }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    or_close([&] {
      require_open();
      std::size_t done = 0;
      do done += gather_piece(mine, all, done);
      while (done < mine.size());
      mine_.record.advance();
    });
  }

  /// Closes the ring, and returns when no copy reads or writes memory of this rank, or when the timeout has passed
  /// because work of a GPU before such a copy does not end.
  void abandon(std::string_view reason, Rank culprit) noexcept {
    close(RingFailure::abandoned(rank_, reason, culprit));
    await_copies();
  }

  /// Throws the failure that closed the ring, if it is closed.
  void require_open() const {
    if (auto const* failure = state_.failure()) failure->raise(rank_);
  }

  /// Records that this rank has left the ring; from then on, waits for this rank fail.
  void leave() noexcept { mine_.left = true; }

 protected:
  /// Submits the copies that the others wait for. Does nothing in a closed ring.
  virtual void serve() = 0;
  /// Returns when no copy touches memory of this rank, whose ring is closed, at the timeout at the latest.
  virtual void await_copies() noexcept = 0;

  /// Closes the ring if function() fails: a half-posted exchange would match a later one.
  template <class Function>
  std::invoke_result_t<Function&> or_close(Function&& function) {
    try {
      return function();
    } catch (std::exception const& error) {
      abandon(error.what(), rank_);
      throw;
    }
  }

  void close(RingFailure const& failure) noexcept { state_.close(rank_, failure); }
  /// Closes the ring because of a failure that this rank has found, and throws.
  [[noreturn]] void fail(RingFailure const& failure) {
    close(failure);
    state_.failure()->raise(rank_);
  }

  /// Lets the others know what this rank waits for.
  void publish(ProcessWait const& wait) { mine_.wait = wait; }

  /// Waits for the ranks for which is_missing(rank) holds, until there is none. Throws CommunicationError if the ring
  /// is or becomes closed, and closes it if one of these ranks has gone or the deadline has passed.
  template <class IsMissing>
  void wait(ProcessWait what, IsMissing is_missing) {
    for (PollingTimer timer(PollingTimer::Of::shared_memory);; timer.pause()) {
      serve();
      bool const was_open = !state_.failure();  // what has come before the ring was closed is not missing
      what.peer = first_rank(size(), is_missing);
      publish(what.peer == CommunicationError::unknown ? ProcessWait{} : what);
      if (what.peer == CommunicationError::unknown) return;
      if (!was_open) require_open();
      Rank const gone = first_rank(size(), [&](Rank rank) { return has_gone(rank, timer) && is_missing(rank); });
      if (gone != CommunicationError::unknown) fail(loss_of(gone, what));
      if (timer.exceeds(timeout_)) fail(report());
    }
  }

  /// Why a wait for a rank that has gone fails.
  RingFailure loss_of(Rank gone, ProcessWait const& what) const noexcept {
    bool const returned = state_.of(gone).left;
    return (returned ? RingFailure::returned : RingFailure::died)(rank_, gone, what.text().view());
  }
  bool has_died(Rank rank) const noexcept { return !state_.is_alive(rank) && !state_.of(rank).left; }

  /// The report of a timeout of this rank, which waits: which rank waits for which.
  RingFailure report() const noexcept {
    try {
      std::vector<RankStatus> statuses;
      for (Rank rank = 0; rank < size(); ++rank) statuses.push_back(status(rank));
      return hang_report(statuses, rank_, timeout_);
    } catch (std::exception const&) {  // no memory for the statuses of all ranks
      ProcessWait const wait = mine_.wait;
      return RingFailure::late(rank_, wait.peer, wait.text().view(), timeout_);
    }
  }

  /// Returns when no other rank uses what this one has made: when all have left and have closed it, or have died. In a
  /// ring that is open or was closed long ago, at the timeout at the latest.
  void await_users() noexcept {
    constexpr std::chrono::milliseconds grace(500);
    mine_.uses_no_other = true;
    auto const uses = [&](Rank rank) { return !state_.of(rank).uses_no_other && state_.is_alive(rank); };
    PollingTimer timer(PollingTimer::Of::shared_memory);
    while (first_rank(size(), uses) != CommunicationError::unknown &&
           !timer.exceeds(state_.failure() ? std::min(grace, timeout_) : timeout_))
      timer.pause();
  }

  std::chrono::milliseconds const timeout_;
  Rank const rank_;
  ProcessState state_;

 private:
  /// Gathers the bytes from `begin` on that one record holds, and returns their number.
  std::size_t gather_piece(std::span<std::byte const> mine, std::span<std::byte> all, std::size_t begin) {
    // A rank that begins a round has read the records of the one before, so two records of each rank are enough.
    std::uint64_t const round = ++rounds_;
    auto const of_rank = [&](Rank rank) -> auto& { return state_.of(rank).records[round % 2]; };
    std::size_t const bytes = std::min(mine.size() - begin, ProcessRank::Record::most_bytes);
    std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(begin), bytes, of_rank(rank_).bytes.begin());
    of_rank(rank_).length = mine.size();
    of_rank(rank_).round = round;
    wait({ProcessWait::all_gather}, [&](Rank rank) { return of_rank(rank).round < round; });
    if (auto const failure = unequal_records(rank_, size(), [&](Rank rank) { return of_rank(rank).length; }))
      fail(*failure);
    for (Rank rank = 0; rank < size(); ++rank)
      std::copy_n(of_rank(rank).bytes.begin(), bytes,
                  all.begin() + rank * static_cast<Index>(mine.size()) + static_cast<Index>(begin));
    return bytes;
  }

  /// True if the rank has left or died; the system is asked for that only after a while.
  bool has_gone(Rank rank, PollingTimer const& timer) const {
    using namespace std::chrono_literals;
    return state_.of(rank).left || (timer.exceeds(10ms) && !state_.is_alive(rank));
  }

  RankStatus status(Rank rank) const {
    ProcessRank const& other = state_.of(rank);
    if (other.left || !state_.is_alive(rank)) return {.kind = RankStatus::Kind::returned};
    ProcessWait const wait = other.wait;
    Rank const peer = wait.is_for_peer() ? wait.peer : CommunicationError::unknown;
    RankStatus status = RankStatus::of(peer, wait.text().view(), other.record);
    if (wait.what == ProcessWait::gpu && !wait.is_for_peer()) status.text.add("; work of its GPU is not done");
    return status;
  }

  ProcessRank& mine_;
  std::vector<Rank> near_ranks_;
  std::uint64_t rounds_ = 0;
};

}  // namespace annulus::detail
