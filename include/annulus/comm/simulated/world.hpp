#pragma once
// State shared by the ranks of a simulated ring: messages, shared buffers, all-gathers and shutdown.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/comm/ring_failure.hpp"
#include "annulus/core/short_list.hpp"

namespace annulus::detail {

/// Bytes aligned to a cache line, and the number of windows that each rank reads. Lives as long as the Buffer of the
/// ring or any window on it.
class SharedBuffer {
 public:
  SharedBuffer(Rank rank, int ranks, Index bytes)
      : size(bytes),
        owner(rank),
        readers(static_cast<std::size_t>(ranks), 0),
        bytes_(bytes == 0 ? nullptr
                          : static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), alignment))) {}

  std::byte* data() const { return bytes_.get(); }
  bool holds(std::span<std::byte const> run) const {
    return data() <= run.data() && run.data() + run.size() <= data() + size;
  }
  /// A rank that has not released a window; none if the bytes may be written.
  std::optional<Rank> reader() const {
    auto const found = std::find_if(readers.begin(), readers.end(), [](int windows) { return windows > 0; });
    return found == readers.end() ? std::nullopt : std::optional(static_cast<Rank>(found - readers.begin()));
  }

  Index const size;
  Rank const owner;
  std::vector<int> readers;  ///< windows that each rank has not released; guarded by the world's lock

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

/// The runs of a window, within one buffer; `memory` is null if all runs are empty.
struct SharedRuns {
  ShortList<std::span<std::byte const>, max_window_runs> runs;
  std::shared_ptr<SharedBuffer> memory;
};

/// The state behind all SimulatedRing objects of one ring, guarded by one lock. Storage is reused, so a repeated
/// exchange allocates nothing. Closing the ring never allocates.
class SimulatedWorld {
 public:
  /// timeout: the longest wait of a rank, after which it closes the ring.
  SimulatedWorld(int ranks, std::chrono::milliseconds timeout)
      : places_(static_cast<std::size_t>(ranks)), timeout_(timeout) {
    for (auto& records : gathered_) records.resize(places_.size());
    // At most this many windows are pending in a pass: the rows of all others, and results from three buffers of each.
    for (Place& place : places_) place.windows.reserve(4 * places_.size());
  }

  int size() const { return static_cast<int>(places_.size()); }
  FlightRecord& flight_record(Rank rank) { return place(rank).record; }
  CallPosition position_of(Rank rank) { return place(rank).record.position(); }

  /// Identity of a message or window: sender, receiver, channel, and sequence number on the channel.
  struct Address {
    Rank from, to;
    Channel channel;
    std::uint64_t number;

    bool operator==(Address const&) const = default;
  };

  /// Both ends of a message. The rank that posts the second end copies, so that no rank depends on another's wait().
  struct Message {
    Address address;
    std::vector<std::span<std::byte const>> out;
    std::vector<std::span<std::byte>> in;
    CallPosition sent_at, expected_at;  ///< of the two ranks when they posted their ends
    bool has_out, has_in, withdrawn;
    enum { awaited, copying, delivered } state;
    Complaint complaint;
    int holders = 0;  ///< ends that are in use; if 0, the object may serve a later message between the same ranks
  };

  /// The two messages of one rank's shift.
  struct Shift {
    Rank rank;
    Message *sent, *received;
  };

  /// Posts both ends of a shift of rank sending.from. Throws CommunicationError if the ring is closed.
  Shift post(Address const& sending, OutgoingBytes out, Address const& receiving, IncomingBytes in) {
    std::unique_lock lock(mutex_);
    require_open(sending.from);
    Shift const shift{sending.from, &message(sending), &message(receiving)};
    shift.sent->out.assign(out.begin(), out.end());
    shift.sent->sent_at = position_of(sending.from);
    shift.sent->has_out = true;
    shift.received->in.assign(in.begin(), in.end());
    shift.received->expected_at = position_of(sending.from);
    shift.received->has_in = true;
    deliver(lock, *shift.sent);
    deliver(lock, *shift.received);
    return shift;
  }

  /// Returns when both messages have been copied; throws CommunicationError if the ring is closed before.
  void wait_until_delivered(Shift const& shift) {
    Rank const rank = shift.rank, from = shift.received->address.from;
    Message *const sent = shift.sent, *const received = shift.received;
    Awaited const what(name_of(received->address.channel), " shift");
    std::unique_lock lock(mutex_);
    wait(lock, rank, what, from, [&] { return received->state == Message::delivered; });
    if (!received->complaint.empty()) fail(rank, received->complaint.view(), from);
    wait(lock, rank, what, sent->address.to, [&] { return sent->state == Message::delivered; });
    --sent->holders;
    --received->holders;
    place(rank).record.advance();
  }

  /// Withdraws an unfinished shift: afterwards no rank reads or writes its bytes.
  void withdraw(Shift const& shift) noexcept {
    std::unique_lock lock(mutex_);
    for (Message* message : {shift.sent, shift.received}) {
      message->withdrawn = true;
      place(shift.rank).changed.wait(lock, [&] { return message->state != Message::copying; });
      --message->holders;
    }
  }

  /// Opens a window on `runs` for rank address.to. Throws CommunicationError if the ring is closed.
  void share(Address const& address, SharedRuns const& runs) {
    std::lock_guard const lock(mutex_);
    require_open(address.from);
    place(address.to).windows.push_back({address, runs, position_of(address.from)});
    if (runs.memory) ++runs.memory->readers[static_cast<std::size_t>(address.to)];
    place(address.to).changed.notify_all();
  }

  /// Waits for a window that this rank opened at `position`. Throws CommunicationError in a closed ring, even if the
  /// owner has shared the window, so that no rank computes in vain.
  SharedRuns take(Address const& address, CallPosition const& position) {
    std::unique_lock lock(mutex_);
    require_open(address.to);
    auto& windows = place(address.to).windows;
    auto found = windows.end();
    wait(lock, address.to, awaited_window(address.channel), address.from, [&] {
      found = std::find_if(windows.begin(), windows.end(), [&](auto const& one) { return one.address == address; });
      return found != windows.end();
    });
    SharedRuns taken = std::move(found->runs);
    CallPosition const sent_at = found->sent_at;
    *found = std::move(windows.back());
    windows.pop_back();
    if (sent_at != position) {
      end_reading(address.to, taken);
      fail(address.to, wrong_position(position, sent_at).view(), address.from);
    }
    place(address.to).record.advance();
    return taken;
  }

  /// Ends the reading of a window that was taken.
  void release(Rank reader, SharedRuns& shared) noexcept {
    {
      std::lock_guard const lock(mutex_);
      end_reading(reader, shared);
    }
    shared = {};
  }

  /// Returns when no rank reads the memory.
  void reclaim(Rank rank, SharedBuffer const& memory) {
    std::unique_lock lock(mutex_);
    require_open(rank);
    while (auto const reader = memory.reader())
      wait(lock, rank, awaited_release(), *reader, [&] { return memory.reader() != reader; });
  }

  /// `round`: the sequence number of this all-gather.
  void all_gather(Rank rank, std::uint64_t round, std::span<std::byte const> mine, std::span<std::byte> all) {
    // A rank that begins a round has read the records of the one before, so two sets of records are enough.
    auto& records = gathered_[round % 2];
    std::unique_lock lock(mutex_);
    require_open(rank);
    records[static_cast<std::size_t>(rank)].bytes.assign(mine.begin(), mine.end());
    records[static_cast<std::size_t>(rank)].round = round;
    auto const is_complete = [&] {
      return std::all_of(records.begin(), records.end(), [&](Record const& record) { return record.round == round; });
    };
    auto const missing = [&](auto accepts) {
      for (Rank other = 0; other < size(); ++other)
        if (records[static_cast<std::size_t>(other)].round != round && accepts(other)) return other;
      return CommunicationError::unknown;
    };
    if (is_complete()) notify_all();
    wait(
        lock, rank, Awaited("all_gather"), [&] { return missing([](Rank) { return true; }); },
        [&] { return missing([&](Rank other) { return place(other).left; }); }, is_complete);
    auto const alike = std::count_if(records.begin(), records.end(),
                                     [&](Record const& record) { return record.bytes.size() == mine.size(); });
    for (Rank other = 0; other < size(); ++other) {
      auto const& record = records[static_cast<std::size_t>(other)].bytes;
      // A rank whose length differs from all others is to blame; of two ranks, each blames the other.
      if (record.size() != mine.size())
        fail(rank, Complaint("expected a record of ", mine.size(), " bytes, got ", record.size()).view(), other,
             alike == 1 && size() > 2 ? rank : other);
      std::copy(record.begin(), record.end(), all.begin() + other * static_cast<Index>(mine.size()));
    }
    place(rank).record.advance();
  }

  /// Closes the ring on behalf of `rank`: from now on every wait that is not yet satisfied fails and blames `culprit`.
  void close(Rank rank, std::string_view reason, Rank culprit) noexcept {
    std::lock_guard const lock(mutex_);
    close(rank, RingFailure::abandoned(rank, reason, culprit));
  }
  void close(Rank rank, std::string_view reason) noexcept { close(rank, reason, rank); }

  /// The rank that closed the ring; `unknown` while it is open.
  Rank closer() {
    std::lock_guard const lock(mutex_);
    return closer_;
  }

  /// Notes that the rank's function has returned: waits for it fail.
  void leave(Rank rank) noexcept {
    std::lock_guard const lock(mutex_);
    place(rank).left = true;
    notify_all();
  }

 private:
  /// A window that its reader has not taken yet.
  struct SharedWindow {
    Address address;
    SharedRuns runs;
    CallPosition sent_at;
  };

  /// The current wait of a rank.
  struct Wait {
    Rank peer;
    Awaited what;
  };

  /// State of one rank. Only its thread waits for `changed`.
  struct Place {
    std::condition_variable changed;
    bool left = false;
    std::optional<Wait> wait;
    FlightRecord record;
    std::vector<std::unique_ptr<Message>> messages;  ///< to this rank
    std::vector<SharedWindow> windows;               ///< opened for this rank, not taken yet
  };

  /// The contribution of a rank to an all-gather.
  struct Record {
    std::vector<std::byte> bytes;
    std::uint64_t round = UINT64_MAX;
  };

  void end_reading(Rank reader, SharedRuns const& shared) noexcept {
    if (!shared.memory) return;
    --shared.memory->readers[static_cast<std::size_t>(reader)];
    place(shared.memory->owner).changed.notify_all();
  }

  /// Closes the ring because of an error in what `rank` has received from `from`, and throws.
  [[noreturn]] void fail(Rank rank, std::string_view complaint, Rank from, Rank culprit) {
    close(rank, RingFailure::received(rank, complaint, from, culprit));
    failure_->raise(rank);
  }
  [[noreturn]] void fail(Rank rank, std::string_view complaint, Rank from) { fail(rank, complaint, from, from); }

  Place& place(Rank rank) { return places_[static_cast<std::size_t>(rank)]; }

  void notify_all() {
    for (Place& place : places_) place.changed.notify_all();
  }

  void close(Rank rank, RingFailure const& failure) noexcept {
    if (!failure_) {
      failure_ = failure;
      closer_ = rank;
    }
    notify_all();
  }

  void require_open(Rank rank) const {
    if (failure_) failure_->raise(rank);
  }

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Rank waiting, Awaited const& what, Rank peer, Ready ready) {
    auto const awaited = [&] { return peer; };
    auto const lost = [&] { return place(peer).left ? peer : CommunicationError::unknown; };
    wait(lock, waiting, what, awaited, lost, ready);
  }

  /// Waits until ready(). peer(): a rank that is waited for. lost(): a rank that has returned, so that ready() stays
  /// false; unknown if there is none. Throws CommunicationError if the ring is or becomes closed.
  template <class Peer, class Lost, class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Rank waiting, Awaited const& what, Peer peer, Lost lost, Ready ready) {
    if (ready()) return;
    Place& mine = place(waiting);
    Rank returned = CommunicationError::unknown;
    bool satisfied = false;
    auto const is_over = [&] {
      satisfied = ready();
      if (satisfied || failure_) return true;
      mine.wait = {peer(), what};
      return (returned = lost()) != CommunicationError::unknown;
    };
    // Clamped, because milliseconds::max() would overflow the clock's own unit.
    auto const timeout = std::min<std::chrono::milliseconds>(timeout_, std::chrono::years(100));
    if (!mine.changed.wait_until(lock, std::chrono::steady_clock::now() + timeout, is_over))
      close(waiting, report_of(waiting));
    mine.wait.reset();
    if (satisfied) return;
    if (!failure_) close(waiting, RingFailure::returned(waiting, returned, what.view()));
    failure_->raise(waiting);
  }

  /// The report of a timeout of rank `waiting`: which rank waits for which.
  RingFailure report_of(Rank waiting) noexcept {
    try {
      std::vector<RankStatus> statuses;
      for (Place& one : places_)
        if (one.left)
          statuses.push_back({.kind = RankStatus::Kind::returned});
        else if (one.wait)
          statuses.push_back(RankStatus::waiting(one.wait->peer, one.wait->what.view(), one.record));
        else
          statuses.push_back(RankStatus::busy(one.record));
      return hang_report(statuses, waiting, timeout_);
    } catch (std::exception const&) {  // no memory for the statuses of all ranks
      Wait const& own = *place(waiting).wait;
      return RingFailure::late(waiting, own.peer, own.what.view(), timeout_);
    }
  }

  /// The message of this address, with one more holder.
  Message& message(Address const& address) {
    Message* spare = nullptr;
    auto& messages = place(address.to).messages;
    for (auto const& message : messages) {
      if (message->holders > 0 && message->address == address && !message->withdrawn) {
        ++message->holders;
        return *message;
      }
      if (message->holders == 0 && message->address.from == address.from && message->address.channel == address.channel)
        spare = message.get();
    }
    // Two objects: the sender may post the next message while the receiver still uses the last one.
    for (int made = 0; !spare && made < 2; ++made) {
      Message& fresh = *messages.emplace_back(std::make_unique<Message>());
      fresh.address = address;
      fresh.out.reserve(max_window_runs);
      fresh.in.reserve(max_window_runs);
    }
    if (!spare) spare = messages.back().get();
    spare->address = address;
    spare->has_out = spare->has_in = spare->withdrawn = false;
    spare->state = Message::awaited;
    spare->complaint.clear();
    spare->holders = 1;
    return *spare;
  }

  /// Copies the message if both its ends are posted.
  void deliver(std::unique_lock<std::mutex>& lock, Message& message) {
    if (!message.has_out || !message.has_in || message.withdrawn || message.state != Message::awaited) return;
    message.state = Message::copying;
    lock.unlock();
    copy(message);
    lock.lock();
    message.state = Message::delivered;
    place(message.address.from).changed.notify_all();
    place(message.address.to).changed.notify_all();
  }

  static void copy(Message& message) {
    auto const& out = message.out;
    auto const& in = message.in;
    if (message.sent_at != message.expected_at)
      message.complaint = wrong_position(message.expected_at, message.sent_at);
    else if (out.size() != in.size())
      message.complaint = wrong_run_count(in.size(), out.size());
    for (std::size_t p = 0; p < in.size() && message.complaint.empty(); ++p)
      if (in[p].size() != out[p].size())
        message.complaint = wrong_run_length(p, in[p].size(), out[p].size());
      else if (!in[p].empty())
        std::memcpy(in[p].data(), out[p].data(), in[p].size());
  }

  std::mutex mutex_;
  std::vector<Place> places_;
  std::chrono::milliseconds timeout_;
  std::array<std::vector<Record>, 2> gathered_;  ///< by parity of the round: one record of each rank
  std::optional<RingFailure> failure_;           ///< the failure that closed the ring
  Rank closer_ = CommunicationError::unknown;
};

}  // namespace annulus::detail
