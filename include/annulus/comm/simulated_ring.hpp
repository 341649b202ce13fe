#pragma once
// A ring inside one process: ranks are threads, and a shift copies straight from the sender's bytes to the receiver's.

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/check.hpp"

namespace annulus {

namespace detail {

/// What the ranks of one simulated ring share.
class SimulatedWorld {
 public:
  explicit SimulatedWorld(int ranks) : left_(static_cast<std::size_t>(ranks), false) {}

  int size() const { return static_cast<int>(left_.size()); }

  /// Sender, receiver, channel, and the how-manieth shift it is between them.
  using Address = std::tuple<Rank, Rank, Channel, std::uint64_t>;

  /// Where a message leaves and where it arrives. Whoever comes second copies, so that no rank needs another's wait().
  struct Message {
    std::optional<std::vector<std::span<std::byte const>>> out;
    std::optional<std::vector<std::span<std::byte>>> in;
    enum { awaited, copying, delivered } state = awaited;
    std::string complaint;
  };

  /// The two messages of one rank's shift.
  struct Shift {
    Address sending, receiving;
    std::shared_ptr<Message> sent, received;
  };

  Shift post(Address const& sending, OutgoingBytes out, Address const& receiving, IncomingBytes in) {
    std::unique_lock lock(mutex_);
    if (closed_) throw CommunicationError(*closed_, std::get<0>(sending), CommunicationError::unknown, culprit_);
    Shift shift{sending, receiving, message(sending), message(receiving)};
    shift.sent->out.emplace(out.begin(), out.end());
    shift.received->in.emplace(in.begin(), in.end());
    deliver(lock, sending);
    deliver(lock, receiving);
    return shift;
  }

  void wait_until_delivered(Shift const& shift) {
    auto const [from, rank, channel, number] = shift.receiving;
    std::unique_lock lock(mutex_);
    wait(lock, rank, from, [&] { return shift.received->state == Message::delivered; });
    if (!shift.received->complaint.empty())
      throw CommunicationError(message_of("rank ", rank, ": ", shift.received->complaint, " from rank ", from), rank,
                               CommunicationError::unknown, from);
    wait(lock, rank, std::get<1>(shift.sending), [&] { return shift.sent->state == Message::delivered; });
  }

  /// Takes an unfinished shift back: afterwards nobody reads or writes its bytes.
  void withdraw(Shift const& shift) noexcept {
    std::unique_lock lock(mutex_);
    messages_.erase(shift.sending);
    messages_.erase(shift.receiving);
    changed_.wait(lock,
                  [&] { return shift.sent->state != Message::copying && shift.received->state != Message::copying; });
  }

  void all_gather(Rank rank, std::uint64_t round, std::span<std::byte const> mine, std::span<std::byte> all) {
    std::unique_lock lock(mutex_);
    if (closed_) throw CommunicationError(*closed_, rank, CommunicationError::unknown, culprit_);
    Gathering& gathering = gatherings_[round];
    gathering.records.resize(left_.size());
    gathering.records[static_cast<std::size_t>(rank)].emplace(mine.begin(), mine.end());
    changed_.notify_all();
    for (Rank other = 0; other < size(); ++other) {
      auto const& record = gathering.records[static_cast<std::size_t>(other)];
      wait(lock, rank, other, [&] { return record.has_value(); });
      if (record->size() != mine.size())
        throw CommunicationError(message_of("rank ", other, " gathers records of ", record->size(), " bytes, rank ",
                                            rank, " of ", mine.size()),
                                 rank, CommunicationError::unknown, other);
      std::copy(record->begin(), record->end(), all.begin() + other * static_cast<Index>(mine.size()));
    }
    if (++gathering.readers == left_.size()) gatherings_.erase(round);
  }

  /// From now on every wait that is not yet satisfied fails.
  void close(Rank culprit, std::string const& reason) noexcept {
    std::lock_guard const lock(mutex_);
    if (!closed_) {
      closed_ = "rank " + std::to_string(culprit) + " left the ring: " + reason;
      culprit_ = culprit;
    }
    changed_.notify_all();
  }

  /// The rank that closed the ring; `unknown` while it is open.
  Rank culprit() {
    std::lock_guard const lock(mutex_);
    return culprit_;
  }

  /// The rank's function has returned: who still waits for it fails.
  void leave(Rank rank) noexcept {
    std::lock_guard const lock(mutex_);
    left_[static_cast<std::size_t>(rank)] = true;
    changed_.notify_all();
  }

 private:
  struct Gathering {
    std::vector<std::optional<std::vector<std::byte>>> records;
    std::size_t readers = 0;
  };

  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, Rank waiting, Rank peer, Ready ready) {
    changed_.wait(lock, [&] { return ready() || closed_ || left_[static_cast<std::size_t>(peer)]; });
    if (ready()) return;
    if (closed_) throw CommunicationError(*closed_, waiting, CommunicationError::unknown, culprit_);
    throw CommunicationError(message_of("rank ", waiting, " waits for rank ", peer, ", which has returned"), waiting,
                             CommunicationError::unknown, peer);
  }

  std::shared_ptr<Message> message(Address const& address) {
    auto& message = messages_[address];
    if (!message) message = std::make_shared<Message>();
    return message;
  }

  /// Copies the message if both its ends are known.
  void deliver(std::unique_lock<std::mutex>& lock, Address const& address) {
    auto const found = messages_.find(address);
    if (found == messages_.end() || !found->second->out || !found->second->in) return;
    auto const message = found->second;
    messages_.erase(found);
    message->state = Message::copying;
    lock.unlock();
    copy(*message);
    lock.lock();
    message->state = Message::delivered;
    changed_.notify_all();
  }

  static void copy(Message& message) {
    auto const& out = *message.out;
    auto const& in = *message.in;
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
  std::condition_variable changed_;
  std::map<Address, std::shared_ptr<Message>> messages_;
  std::map<std::uint64_t, Gathering> gatherings_;
  std::vector<bool> left_;
  std::optional<std::string> closed_;
  Rank culprit_ = CommunicationError::unknown;
};

}  // namespace detail

/// The communicator of one rank of run_ring. It lives as long as the function that run_ring calls.
class SimulatedRing {
 public:
  using memory_space = HostMemory;

  /// Both halves of a shift: this rank's message to the next rank, and the place for the previous rank's.
  class Transfer {
   public:
    Transfer(Transfer&& other) noexcept
        : world_(std::exchange(other.world_, nullptr)), shift_(std::move(other.shift_)) {}
    Transfer& operator=(Transfer&& other) noexcept {
      if (this != &other) {
        Transfer const previous(std::move(*this));
        world_ = std::exchange(other.world_, nullptr);
        shift_ = std::move(other.shift_);
      }
      return *this;
    }

    ~Transfer() {
      if (!world_) return;
      world_->close(std::get<0>(shift_.sending), "it dropped a transfer under way");
      world_->withdraw(shift_);
    }

    void wait() {
      if (!world_) return;
      world_->wait_until_delivered(shift_);
      world_ = nullptr;
    }

   private:
    friend class SimulatedRing;
    using World = detail::SimulatedWorld;
    Transfer(World& world, World::Shift shift) : world_(&world), shift_(std::move(shift)) {}

    World* world_;
    World::Shift shift_;
  };

  Rank rank() const { return rank_; }
  int size() const { return world_->size(); }

  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    Rank const to = ring_neighbour(rank_, hop, size()), from = ring_neighbour(rank_, -hop, size());
    return {*world_, world_->post({rank_, to, channel, sent_[{to, channel}]++}, out,
                                  {from, rank_, channel, received_[{from, channel}]++}, in)};
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    world_->all_gather(rank_, rounds_++, mine, all);
  }

  void abandon(std::string const& reason) noexcept { world_->close(rank_, reason); }

  SimulatedRing(detail::SimulatedWorld& world, Rank rank) : world_(&world), rank_(rank) {}

 private:
  detail::SimulatedWorld* world_;
  Rank rank_;
  std::map<std::pair<Rank, Channel>, std::uint64_t> sent_, received_;
  std::uint64_t rounds_ = 0;
};

static_assert(Communicator<SimulatedRing>);

/// Runs function(ring) on `ranks` threads that form a ring, and returns when all have ended. Results, if the function
/// has any, come back in rank order. If a rank throws, the others' waits fail, and that rank's exception is thrown
/// here.
template <class Function>
auto run_ring(int ranks, Function&& function) {
  using Result = std::invoke_result_t<Function&, SimulatedRing&>;
  constexpr bool returns = !std::is_void_v<Result>;
  check<UnsupportedError>(ranks >= 1, "run_ring over ", ranks, " ranks; at least one is needed");

  detail::SimulatedWorld world(ranks);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::conditional_t<returns, std::optional<std::conditional_t<returns, Result, char>>, char>> results(
      static_cast<std::size_t>(ranks));

  auto const run = [&](Rank rank) {
    SimulatedRing ring(world, rank);
    try {
      if constexpr (returns)
        results[static_cast<std::size_t>(rank)] = function(ring);
      else
        function(ring);
      world.leave(rank);
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      world.close(rank, "it threw an exception");
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (Rank rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
    } catch (std::exception const& error) {
      auto const rank = static_cast<Rank>(threads.size()) + 1;
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      world.close(rank, std::string("no thread for it: ") + error.what());
    }
    run(0);
  }
  // Whoever closed the ring failed first; what the others threw is the consequence.
  if (Rank const culprit = world.culprit(); culprit != CommunicationError::unknown)
    if (auto const& first = failures[static_cast<std::size_t>(culprit)]) std::rethrow_exception(first);
  for (auto const& failure : failures)
    if (failure) std::rethrow_exception(failure);
  if constexpr (returns) {
    std::vector<Result> values;
    for (auto& result : results) values.push_back(std::move(*result));
    return values;
  }
}

}  // namespace annulus
