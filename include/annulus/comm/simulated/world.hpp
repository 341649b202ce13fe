#pragma once
// What the ranks of one simulated ring share: messages, loans, gatherings, and the end of it all.

#include <algorithm>
#include <array>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/simulated/lent_memory.hpp"
#include "annulus/core/check.hpp"

namespace annulus::detail {

/// One lock for all. What was needed once is kept for the next time, so that a repeated exchange allocates nothing.
class SimulatedWorld {
 public:
  explicit SimulatedWorld(int ranks) : places_(static_cast<std::size_t>(ranks)) {
    for (auto& records : gatherings_) records.resize(places_.size());
    // What a pass has under way at most: the rows of all others, and results out of three buffers of each.
    for (Place& place : places_) place.loans.reserve(4 * places_.size());
  }

  int size() const { return static_cast<int>(places_.size()); }

  /// What travels from one rank to another: the how-manieth on its channel.
  struct Address {
    Rank from, to;
    Channel channel;
    std::uint64_t number;

    bool operator==(Address const&) const = default;
  };

  /// Where a message leaves and where it arrives. Whoever comes second copies, so that no rank needs another's wait().
  struct Message {
    Address address;
    std::vector<std::span<std::byte const>> out;
    std::vector<std::span<std::byte>> in;
    bool has_out, has_in, withdrawn;
    enum { awaited, copying, delivered } state;
    std::string complaint;
    int holders = 0;  ///< of its two ends; without any it may serve the next one between the same ranks
  };

  /// The two messages of one rank's shift.
  struct Shift {
    Rank rank;
    Message *sent, *received;
  };

  Shift post(Address const& sending, OutgoingBytes out, Address const& receiving, IncomingBytes in) {
    std::unique_lock lock(mutex_);
    require_open(sending.from);
    Shift const shift{sending.from, &message(sending), &message(receiving)};
    shift.sent->out.assign(out.begin(), out.end());
    shift.sent->has_out = true;
    shift.received->in.assign(in.begin(), in.end());
    shift.received->has_in = true;
    deliver(lock, *shift.sent);
    deliver(lock, *shift.received);
    return shift;
  }

  void wait_until_delivered(Shift const& shift) {
    Rank const rank = shift.rank, from = shift.received->address.from;
    Message *const sent = shift.sent, *const received = shift.received;
    std::unique_lock lock(mutex_);
    wait(lock, rank, from, [&] { return received->state == Message::delivered; });
    if (!received->complaint.empty())
      throw CommunicationError(message_of("rank ", rank, ": ", received->complaint, " from rank ", from), rank,
                               CommunicationError::unknown, from);
    wait(lock, rank, sent->address.to, [&] { return sent->state == Message::delivered; });
    --sent->holders;
    --received->holders;
  }

  /// Takes an unfinished shift back: afterwards nobody reads or writes its bytes.
  void withdraw(Shift const& shift) noexcept {
    std::unique_lock lock(mutex_);
    for (Message* message : {shift.sent, shift.received}) {
      message->withdrawn = true;
      place(shift.rank).changed.wait(lock, [&] { return message->state != Message::copying; });
      --message->holders;
    }
  }

  void lend(Address const& address, LentRuns const& runs) {
    std::lock_guard const lock(mutex_);
    require_open(address.from);
    place(address.to).loans.push_back({address, runs});
    if (runs.memory) ++runs.memory->readers[static_cast<std::size_t>(address.to)];
    place(address.to).changed.notify_all();
  }

  /// Returns when it is lent. Throws in a closed ring whatever is lent, so that no rank works on in vain.
  LentRuns take(Address const& address) {
    std::unique_lock lock(mutex_);
    require_open(address.to);
    auto& loans = place(address.to).loans;
    auto found = loans.end();
    wait(lock, address.to, address.from, [&] {
      found = std::find_if(loans.begin(), loans.end(), [&](auto const& loan) { return loan.first == address; });
      return found != loans.end();
    });
    LentRuns taken = std::move(found->second);
    *found = std::move(loans.back());
    loans.pop_back();
    return taken;
  }

  void give_back(Rank reader, LentRuns& lent) noexcept {
    if (lent.memory) {
      std::lock_guard const lock(mutex_);
      --lent.memory->readers[static_cast<std::size_t>(reader)];
      place(lent.memory->owner).changed.notify_all();
    }
    lent = {};
  }

  /// Returns when nobody reads the memory.
  void reclaim(Rank rank, LentMemory const& memory) {
    std::unique_lock lock(mutex_);
    require_open(rank);
    while (auto const reader = memory.reader()) wait(lock, rank, *reader, [&] { return memory.reader() != reader; });
  }

  void all_gather(Rank rank, std::uint64_t round, std::span<std::byte const> mine, std::span<std::byte> all) {
    // A rank that begins a round has read the one before, so two take turns.
    auto& records = gatherings_[round % 2];
    std::unique_lock lock(mutex_);
    require_open(rank);
    records[static_cast<std::size_t>(rank)].bytes.assign(mine.begin(), mine.end());
    records[static_cast<std::size_t>(rank)].round = round;
    auto const is_complete = [&] {
      return std::all_of(records.begin(), records.end(), [&](Record const& record) { return record.round == round; });
    };
    auto const lost = [&]() -> std::optional<Rank> {
      for (Rank other = 0; other < size(); ++other)
        if (place(other).left && records[static_cast<std::size_t>(other)].round != round) return other;
      return std::nullopt;
    };
    if (is_complete()) notify_all();
    wait(lock, rank, lost, is_complete);
    for (Rank other = 0; other < size(); ++other) {
      auto const& record = records[static_cast<std::size_t>(other)].bytes;
      if (record.size() != mine.size())
        throw CommunicationError(message_of("rank ", other, " gathers records of ", record.size(), " bytes, rank ",
                                            rank, " of ", mine.size()),
                                 rank, CommunicationError::unknown, other);
      std::copy(record.begin(), record.end(), all.begin() + other * static_cast<Index>(mine.size()));
    }
  }

  /// From now on every wait that is not yet satisfied fails.
  void close(Rank culprit, std::string const& reason) noexcept {
    std::lock_guard const lock(mutex_);
    if (!closed_) {
      closed_ = "rank " + std::to_string(culprit) + " left the ring: " + reason;
      culprit_ = culprit;
    }
    notify_all();
  }

  /// The rank that closed the ring; `unknown` while it is open.
  Rank culprit() {
    std::lock_guard const lock(mutex_);
    return culprit_;
  }

  /// The rank's function has returned: who still waits for it fails.
  void leave(Rank rank) noexcept {
    std::lock_guard const lock(mutex_);
    place(rank).left = true;
    notify_all();
  }

 private:
  /// What concerns one rank: its thread alone waits for `changed`.
  struct Place {
    std::condition_variable changed;
    bool left = false;
    std::vector<std::unique_ptr<Message>> messages;   ///< to this rank
    std::vector<std::pair<Address, LentRuns>> loans;  ///< to this rank, not taken yet
  };

  struct Record {
    std::vector<std::byte> bytes;
    std::uint64_t round = UINT64_MAX;
  };

  Place& place(Rank rank) { return places_[static_cast<std::size_t>(rank)]; }

  void notify_all() {
    for (Place& place : places_) place.changed.notify_all();
  }

  void require_open(Rank rank) const {
    if (closed_) throw CommunicationError(*closed_, rank, CommunicationError::unknown, culprit_);
  }

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Rank waiting, Rank peer, Ready ready) {
    wait(
        lock, waiting, [&] { return place(peer).left ? std::optional(peer) : std::nullopt; }, ready);
  }

  /// lost(): a rank without which it will never be ready.
  template <class Lost, class Ready>
  requires std::invocable<Lost&>
  void wait(std::unique_lock<std::mutex>& lock, Rank waiting, Lost lost, Ready ready) {
    bool satisfied = false;
    std::optional<Rank> peer;
    place(waiting).changed.wait(lock, [&] { return (satisfied = ready()) || closed_ || (peer = lost()); });
    if (satisfied) return;
    require_open(waiting);
    throw CommunicationError(message_of("rank ", waiting, " waits for rank ", *peer, ", which has returned"), waiting,
                             CommunicationError::unknown, *peer);
  }

  /// The message, for one more end.
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
    // Two at once: while the receiver still looks at one, the sender may post the next.
    for (int made = 0; !spare && made < 2; ++made) {
      Message& fresh = *messages.emplace_back(std::make_unique<Message>());
      fresh.address = address;
      fresh.out.reserve(max_lent_runs);
      fresh.in.reserve(max_lent_runs);
    }
    if (!spare) spare = messages.back().get();
    spare->address = address;
    spare->has_out = spare->has_in = spare->withdrawn = false;
    spare->state = Message::awaited;
    spare->complaint.clear();
    spare->holders = 1;
    return *spare;
  }

  /// Copies the message if both its ends are known.
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
    if (out.size() != in.size()) {
      message.complaint = message_of("expected ", in.size(), " runs, got ", out.size());
      return;
    }
    for (std::size_t p = 0; p < in.size(); ++p) {
      if (in[p].size() != out[p].size()) {
        message.complaint = message_of("expected ", in[p].size(), " bytes in run ", p, ", got ", out[p].size());
        return;
      }
      if (!in[p].empty()) std::memcpy(in[p].data(), out[p].data(), in[p].size());
    }
  }

  std::mutex mutex_;
  std::vector<Place> places_;
  std::array<std::vector<Record>, 2> gatherings_;  ///< a record of each rank
  std::optional<std::string> closed_;
  Rank culprit_ = CommunicationError::unknown;
};

}  // namespace annulus::detail
