#pragma once
// One rank's end of a simulated ring: messages, shared buffers, all-gathers and shutdown, under a lock that all ranks
// share.

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
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/ring_failure.hpp"
#include "annulus/comm/simulated/message.hpp"
#include "annulus/core/short_list.hpp"

namespace annulus {

/// Options of run_ring.
struct SimulatedRingOptions {
  /// Zero-copy exchange is always possible here; `never` behaves like a ring over several machines.
  ZeroCopy zero_copy = ZeroCopy::automatic;
  /// The longest wait of a rank, after which the ring is closed on all ranks; at least 1 ms.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Consecutive ranks that are near each other, as on a node; the last ones may be fewer. 0: all ranks.
  int near_ranks = 0;
};

namespace detail {

class SimulatedEndpoint;

/// A buffer, and the number of windows that each rank reads. Lives as long as the Buffer of the ring or any window on
/// it.
struct SharedBuffer {
  HostBuffer memory;
  Rank owner;
  std::vector<int> readers;  ///< windows that each rank has not released; guarded by the lock of the ring

  bool holds(std::span<std::byte const> run) const {
    Index const size = std::ssize(run);
    return size <= memory.size() && memory.data() <= run.data() && run.data() - memory.data() <= memory.size() - size;
  }
};

/// State of a ring that all ranks use.
struct SimulatedWorld {
  /// The contribution of a rank to an all-gather.
  struct Record {
    std::vector<std::byte> bytes;
    std::uint64_t round = UINT64_MAX;
  };

  SimulatedWorld(int size, SimulatedRingOptions const& chosen);

  // Constant once constructed.
  SimulatedRingOptions const options;
  std::vector<std::unique_ptr<SimulatedEndpoint>> ranks;
  std::vector<Rank> near_ranks;  ///< for every rank the first rank that is near it

  std::mutex mutex;
  // Guarded by the mutex.
  std::array<std::vector<Record>, 2> gathered;  ///< by parity of the round: one record of each rank
  std::optional<RingFailure> failure;           ///< the failure that closed the ring
  Rank closer = CommunicationError::unknown;    ///< the rank that closed it
};

/// Storage is reused, so a repeated exchange allocates nothing. Closing the ring never allocates.
///
/// Concurrency. Each rank has one thread; "the lock" is SimulatedWorld::mutex.
///  * start_shift, complete, drop, open_window, reclaim, all_gather, leave, allocate, flight_record: called by the
///    thread of the rank. All but the last two take the lock, and wait without it.
///  * abandon: called by the rank's thread, or by the thread that could not start it; takes the lock.
///  * EndReading: called by any thread that destroys a Window; takes the lock.
///  * rank, size, shares_memory, near_ranks: called by any thread; what they read is constant.
///  * require_open: called with the lock held, or after the failure was thrown, which is never changed.
///  * post, wait, withdraw, close, fail, report, end_reading, notify_all: called with the lock held. post copies a
///    message without it, while the message is `copying`: no other thread touches it then.
class SimulatedEndpoint {
  using Address = SimulatedAddress;
  using Message = SimulatedMessage;

  /// Ends the reading of a window.
  struct EndReading {
    std::shared_ptr<SharedBuffer> memory;
    void operator()(SimulatedEndpoint* reader) const noexcept {
      std::lock_guard const lock(reader->world_.mutex);
      reader->end_reading(*memory);
    }
  };

 public:
  /// The two messages of this rank's shift.
  struct Shift {
    Message *sent, *received;
  };

  /// A window on the buffer of another rank; `runs` are set once it is complete.
  struct Window {
    Address address;
    CallPosition position;  ///< of this rank when it opened the window
    ShortList<std::span<std::byte const>, max_window_runs> runs{};
    std::unique_ptr<SimulatedEndpoint, EndReading> reading{};
  };

  SimulatedEndpoint(SimulatedWorld& world, Rank rank, int size)
      : world_(world), rank_(rank), sent_(num_streams(size), 0), received_(sent_), opened_(sent_), windows_(sent_) {
    // At most this many windows are pending in a pass: the rows of all others, and results from three buffers of each.
    arriving_.reserve(4 * static_cast<std::size_t>(size));
  }

  Rank rank() const { return rank_; }
  int size() const { return static_cast<int>(world_.ranks.size()); }
  FlightRecord& flight_record() { return record_; }
  bool shares_memory() const { return world_.options.zero_copy != ZeroCopy::never; }
  std::span<Rank const> near_ranks() const { return world_.near_ranks; }

  Shift start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    return or_close([&]() -> Shift {
      Address const sending = to_next(channel, hop, sent_), receiving = from_next(channel, hop, received_);
      std::unique_lock lock(world_.mutex);
      require_open();
      Shift const shift{&of(sending.to).messages_.hold(sending), &messages_.hold(receiving)};
      shift.sent->out.assign(out.begin(), out.end());
      shift.sent->sent_at = record_.position();
      shift.received->in.assign(in.begin(), in.end());
      shift.received->expected_at = record_.position();
      post(lock, *shift.sent);
      post(lock, *shift.received);
      return shift;
    });
  }

  /// Returns when both messages have been copied.
  void complete(Shift const& shift) {
    Message *const sent = shift.sent, *const received = shift.received;
    std::unique_lock lock(world_.mutex);
    try {
      Awaited const what(name_of(received->address.channel), " shift");
      Rank const from = received->address.from, to = sent->address.to;
      wait(lock, what, [&](Rank rank) { return rank == from && received->state != Message::delivered; });
      if (!received->complaint.empty()) fail(received->complaint.view(), from);
      wait(lock, what, [&](Rank rank) { return rank == to && sent->state != Message::delivered; });
    } catch (...) {
      withdraw(lock, shift);
      throw;
    }
    --sent->holders;
    --received->holders;
    record_.advance();
  }

  void drop(Shift const& shift) noexcept {
    abandon("it dropped a pending transfer", rank_);
    std::unique_lock lock(world_.mutex);
    withdraw(lock, shift);
  }

  std::shared_ptr<std::byte> allocate(Index bytes) {
    std::erase_if(buffers_, [](auto const& buffer) { return buffer.expired(); });
    auto const buffer = std::make_shared<SharedBuffer>(
        SharedBuffer{HostBuffer(bytes), rank_, std::vector<int>(world_.ranks.size(), 0)});
    buffers_.push_back(buffer);
    return {buffer, buffer->memory.data()};
  }

  Window open_window(Channel channel, int hop, OutgoingBytes out) {
    return or_close([&] { return share(channel, hop, out); });
  }

  /// Waits for the window. Throws CommunicationError in a closed ring, even if the owner has shared the window, so that
  /// no rank computes in vain.
  void complete(Window& window) {
    std::unique_lock lock(world_.mutex);
    require_open();
    Address const& address = window.address;
    Arriving* found = nullptr;
    wait(lock, awaited_window(address.channel), [&](Rank rank) {
      if (rank != address.from) return false;
      found = arriving_at(address);
      return found == nullptr;
    });
    Arriving taken = std::exchange(*found, std::move(arriving_.back()));
    arriving_.pop_back();
    if (taken.sent_at != window.position) {
      if (taken.memory) end_reading(*taken.memory);
      fail(wrong_position(window.position, taken.sent_at).view(), address.from);
    }
    window.runs = taken.runs;
    if (taken.memory) window.reading = {this, EndReading{std::move(taken.memory)}};
    record_.advance();
  }

  void drop(Window const&) noexcept { abandon("it dropped a pending window", rank_); }

  void reclaim(std::byte const* first) {
    auto const buffer = buffer_of({first, 1});
    if (!buffer) return;
    std::unique_lock lock(world_.mutex);
    require_open();
    wait(lock, awaited_release(), [&](Rank reader) { return buffer->readers[static_cast<std::size_t>(reader)] > 0; });
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    or_close([&] { gather(mine, all); });
  }

  /// Closes the ring: from now on every wait that is not yet satisfied fails and blames `culprit`.
  void abandon(std::string_view reason, Rank culprit) noexcept {
    std::lock_guard const lock(world_.mutex);
    close(RingFailure::abandoned(rank_, reason, culprit));
  }

  /// Throws the failure that closed the ring, if it is closed. Called under the lock, or after that failure was thrown.
  void require_open() const {
    if (world_.failure) world_.failure->raise(rank_);
  }

  /// Records that this rank's function has returned; from then on, waits for this rank fail.
  void leave() noexcept {
    std::lock_guard const lock(world_.mutex);
    left_ = true;
    notify_all();
  }

 private:
  /// A window that this rank has not taken yet; all runs lie in `memory`, which is null if all are empty.
  struct Arriving {
    Address address;
    CallPosition sent_at;
    ShortList<std::span<std::byte const>, max_window_runs> runs;
    std::shared_ptr<SharedBuffer> memory;
  };

  /// Numbers of exchanges with each peer, by stream_index.
  using Counts = std::vector<std::uint64_t>;

  SimulatedEndpoint& of(Rank rank) const { return *world_.ranks[static_cast<std::size_t>(rank)]; }

  Address to_next(Channel channel, int hop, Counts& counts) const {
    Rank const to = ring_neighbour(rank_, hop, size());
    return {rank_, to, channel, counts[stream_index(channel, to)]++};
  }
  Address from_next(Channel channel, int hop, Counts& counts) const {
    Rank const from = ring_neighbour(rank_, -hop, size());
    return {from, rank_, channel, counts[stream_index(channel, from)]++};
  }

  /// Closes the ring if function() fails: a half-posted exchange would match a later one.
  template <class Function>
  std::invoke_result_t<Function&> or_close(Function&& function) {
    try {
      return function();
    } catch (CommunicationError const&) {
      throw;
    } catch (std::exception const& error) {
      abandon(error.what(), rank_);
      throw;
    }
  }

  /// open_window(), in a ring that is closed if this fails.
  Window share(Channel channel, int hop, OutgoingBytes out) {
    Arriving shared{to_next(channel, hop, opened_), record_.position(), {}, {}};
    shared.memory = buffer_of_window(out, [&](auto const& run) { return buffer_of(run); });
    for (auto const& run : out) shared.runs.push_back(run);
    std::lock_guard const lock(world_.mutex);
    require_open();
    SimulatedEndpoint& reader = of(shared.address.to);
    reader.arriving_.push_back(shared);
    if (shared.memory) ++shared.memory->readers[static_cast<std::size_t>(reader.rank_)];
    reader.changed_.notify_all();
    return {from_next(channel, hop, windows_), record_.position()};
  }

  /// all_gather(), in a ring that is closed if this fails.
  void gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    std::uint64_t const round = rounds_++;
    // A rank that begins a round has read the records of the one before, so two sets of records are enough.
    auto& records = world_.gathered[round % 2];
    std::unique_lock lock(world_.mutex);
    require_open();
    auto const of_rank = [&](Rank rank) -> auto& { return records[static_cast<std::size_t>(rank)]; };
    of_rank(rank_).bytes.assign(mine.begin(), mine.end());
    of_rank(rank_).round = round;
    auto const is_missing = [&](Rank rank) { return of_rank(rank).round != round; };
    if (first_rank(is_missing) == CommunicationError::unknown) notify_all();
    wait(lock, Awaited("all-gather"), is_missing);
    auto const is_alike = [&](auto const& record) { return record.bytes.size() == mine.size(); };
    auto const alike = std::count_if(records.begin(), records.end(), is_alike);
    for (Rank rank = 0; rank < size(); ++rank) {
      auto const& bytes = of_rank(rank).bytes;
      // A rank whose length differs from all others is to blame; of two ranks, each blames the other.
      if (bytes.size() != mine.size())
        fail(Complaint("expected a record of ", mine.size(), " bytes, got ", bytes.size()).view(), rank,
             alike == 1 && size() > 2 ? rank_ : rank);
      std::copy(bytes.begin(), bytes.end(), all.begin() + rank * static_cast<Index>(mine.size()));
    }
    record_.advance();
  }

  /// The window of this address; null if it has not arrived.
  Arriving* arriving_at(Address const& address) {
    for (Arriving& one : arriving_)
      if (one.address == address) return &one;
    return nullptr;
  }

  /// The live buffer of this rank that holds the bytes; null if there is none.
  std::shared_ptr<SharedBuffer> buffer_of(std::span<std::byte const> bytes) const {
    for (auto const& entry : buffers_)
      if (auto buffer = entry.lock(); buffer && buffer->holds(bytes)) return buffer;
    return nullptr;
  }

  void end_reading(SharedBuffer& buffer) noexcept {
    --buffer.readers[static_cast<std::size_t>(rank_)];
    of(buffer.owner).changed_.notify_all();
  }

  void notify_all() {
    for (auto const& rank : world_.ranks) rank->changed_.notify_all();
  }

  void close(RingFailure const& failure) noexcept {
    if (!world_.failure) {
      world_.failure = failure;
      world_.closer = rank_;
    }
    notify_all();
  }

  /// Closes the ring because of an error in what this rank has received from `from`, and throws.
  [[noreturn]] void fail(std::string_view complaint, Rank from, Rank culprit) {
    close(RingFailure::received(rank_, complaint, from, culprit));
    world_.failure->raise(rank_);
  }
  [[noreturn]] void fail(std::string_view complaint, Rank from) { fail(complaint, from, from); }

  /// The first rank for which matches(rank) holds; unknown if there is none.
  template <class Matches>
  Rank first_rank(Matches matches) const {
    for (Rank rank = 0; rank < size(); ++rank)
      if (matches(rank)) return rank;
    return CommunicationError::unknown;
  }

  /// The first of these ranks that has returned.
  template <class Matches>
  Rank first_returned(Matches matches) const {
    return first_rank([&](Rank rank) { return matches(rank) && of(rank).left_; });
  }

  /// Waits for the ranks for which is_missing(rank) holds, until there is none. Throws CommunicationError if the ring
  /// is or becomes closed, and closes it if one of these ranks has returned or the deadline has passed.
  template <class IsMissing>
  void wait(std::unique_lock<std::mutex>& lock, Awaited const& what, IsMissing is_missing) {
    constexpr Rank none = CommunicationError::unknown;
    Rank returned = none;
    auto const is_over = [&] {
      awaited_ = first_rank(is_missing);
      if (awaited_ == none || world_.failure) return true;
      returned = first_returned(is_missing);
      return returned != none;
    };
    awaited_what_ = what;
    // Clamped, because milliseconds::max() would overflow the clock's own unit.
    auto const timeout = std::min<std::chrono::milliseconds>(world_.options.timeout, std::chrono::years(100));
    if (!changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout, is_over)) close(report());
    if (std::exchange(awaited_, none) == none) return;
    if (!world_.failure) close(RingFailure::returned(rank_, returned, what.view()));
    world_.failure->raise(rank_);
  }

  /// The report of a timeout of this rank: which rank waits for which.
  RingFailure report() noexcept {
    try {
      std::vector<RankStatus> statuses;
      for (auto const& one : world_.ranks)
        statuses.push_back(one->left_ ? RankStatus{.kind = RankStatus::Kind::returned}
                                      : RankStatus::of(one->awaited_, one->awaited_what_.view(), one->record_));
      return hang_report(statuses, rank_, world_.options.timeout);
    } catch (std::exception const&) {  // no memory for the statuses of all ranks
      return RingFailure::late(rank_, awaited_, awaited_what_.view(), world_.options.timeout);
    }
  }

  /// Notes that an end of the message is posted, and copies the message if both are.
  void post(std::unique_lock<std::mutex>& lock, Message& message) {
    if (++message.posted < 2 || message.withdrawn || message.state != Message::awaited) return;
    message.state = Message::copying;
    lock.unlock();
    message.copy();
    lock.lock();
    message.state = Message::delivered;
    of(message.address.from).changed_.notify_all();
    of(message.address.to).changed_.notify_all();
  }

  /// Withdraws an unfinished shift: afterwards no rank reads or writes its bytes.
  void withdraw(std::unique_lock<std::mutex>& lock, Shift const& shift) noexcept {
    for (Message* message : {shift.sent, shift.received}) {
      message->withdrawn = true;
      changed_.wait(lock, [&] { return message->state != Message::copying; });
      --message->holders;
    }
  }

  // Constant.
  SimulatedWorld& world_;
  Rank rank_;
  // Used by this rank's thread alone.
  Counts sent_, received_, opened_, windows_;
  std::uint64_t rounds_ = 0;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;
  // Written by this rank's thread, which another one may read, with the lock, to report a timeout.
  FlightRecord record_;
  // Guarded by the lock.
  SimulatedMailbox messages_;
  std::vector<Arriving> arriving_;              ///< windows opened for this rank, by the owners of their buffers
  std::condition_variable changed_;             ///< only this rank's thread waits for it, all notify it
  Rank awaited_ = CommunicationError::unknown;  ///< in the current wait
  Awaited awaited_what_{};
  bool left_ = false;
};

inline SimulatedWorld::SimulatedWorld(int size, SimulatedRingOptions const& chosen) : options(chosen) {
  int const near = options.near_ranks == 0 ? size : options.near_ranks;
  for (Rank rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<SimulatedEndpoint>(*this, rank, size));
    near_ranks.push_back(rank / near * near);
  }
  for (auto& records : gathered) records.resize(ranks.size());
}

}  // namespace detail
}  // namespace annulus
