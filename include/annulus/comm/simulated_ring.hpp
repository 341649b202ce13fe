#pragma once
// A ring inside one process: ranks are threads, and a shift copies straight from the sender's bytes to the receiver's.

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

  struct Message {
    std::vector<std::span<std::byte const>> runs;
    enum { posted, copying, delivered } state = posted;
  };
  /// Sender, receiver, channel, and the how-manieth shift it is between them.
  using Address = std::tuple<Rank, Rank, Channel, std::uint64_t>;

  std::shared_ptr<Message> post(Address const& address, OutgoingBytes runs) {
    auto message = std::make_shared<Message>();
    message->runs.assign(runs.begin(), runs.end());
    std::lock_guard const lock(mutex_);
    if (closed_) throw CommunicationError(*closed_, std::get<0>(address), CommunicationError::unknown, culprit_);
    messages_.emplace(address, message);
    changed_.notify_all();
    return message;
  }

  void receive(Address const& address, std::span<std::span<std::byte> const> runs) {
    auto const [from, to, channel, number] = address;
    std::unique_lock lock(mutex_);
    wait(lock, to, from, [&] { return messages_.contains(address); });
    auto const message = messages_.extract(address).mapped();
    message->state = Message::copying;
    lock.unlock();
    std::string const complaint = copy(*message, runs);
    lock.lock();
    message->state = Message::delivered;
    changed_.notify_all();
    if (complaint.empty()) return;
    lock.unlock();
    throw CommunicationError(message_of("rank ", to, ": ", complaint, " from rank ", from), to,
                             CommunicationError::unknown, from);
  }

  void wait_until_delivered(Message const& message, Rank sender, Rank receiver) {
    std::unique_lock lock(mutex_);
    wait(lock, sender, receiver, [&] { return message.state == Message::delivered; });
  }

  /// Takes an unfinished message back: afterwards nobody reads the sender's bytes.
  void withdraw(Address const& address, Message const& message) noexcept {
    std::unique_lock lock(mutex_);
    messages_.erase(address);
    changed_.wait(lock, [&] { return message.state != Message::copying; });
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
      check<CommunicationError>(record->size() == mine.size(), "rank ", other, " gathers records of ", record->size(),
                                " bytes, rank ", rank, " of ", mine.size());
      std::memcpy(all.data() + static_cast<std::size_t>(other) * mine.size(), record->data(), mine.size());
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

  static std::string copy(Message const& message, std::span<std::span<std::byte> const> runs) {
    if (message.runs.size() != runs.size())
      return message_of("expected ", runs.size(), " runs, got ", message.runs.size());
    for (std::size_t p = 0; p < runs.size(); ++p) {
      if (runs[p].size() != message.runs[p].size())
        return message_of("expected ", runs[p].size(), " bytes in run ", p, ", got ", message.runs[p].size());
      if (!runs[p].empty()) std::memcpy(runs[p].data(), message.runs[p].data(), runs[p].size());
    }
    return {};
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
        : world_(std::exchange(other.world_, nullptr)), sending_(other.sending_), receiving_(other.receiving_),
          message_(std::move(other.message_)), runs_(std::move(other.runs_)) {}
    Transfer& operator=(Transfer&& other) noexcept {
      if (this != &other) {
        Transfer previous(std::move(*this));
        world_ = std::exchange(other.world_, nullptr);
        sending_ = other.sending_;
        receiving_ = other.receiving_;
        message_ = std::move(other.message_);
        runs_ = std::move(other.runs_);
      }
      return *this;
    }

    ~Transfer() {
      if (!world_) return;
      world_->close(std::get<0>(sending_), "it dropped a transfer under way");
      world_->withdraw(sending_, *message_);
    }

    void wait() {
      if (!world_) return;
      world_->receive(receiving_, runs_);
      world_->wait_until_delivered(*message_, std::get<0>(sending_), std::get<1>(sending_));
      world_ = nullptr;
    }

   private:
    friend class SimulatedRing;
    using World = detail::SimulatedWorld;
    Transfer(World& world, World::Address sending, World::Address receiving, OutgoingBytes out, IncomingBytes in)
        : world_(&world), sending_(sending), receiving_(receiving), message_(world.post(sending, out)),
          runs_(in.begin(), in.end()) {}

    World* world_;
    World::Address sending_, receiving_;
    std::shared_ptr<World::Message> message_;
    std::vector<std::span<std::byte>> runs_;
  };

  Rank rank() const { return rank_; }
  int size() const { return world_->size(); }

  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    Rank const to = ring_neighbour(rank_, hop, size()), from = ring_neighbour(rank_, -hop, size());
    return {*world_,
            {rank_, to, channel, sent_[{to, channel}]++},
            {from, rank_, channel, received_[{from, channel}]++},
            out,
            in};
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
/// has any, come back in rank order. If a rank throws, the others' waits fail, and that rank's exception is thrown here.
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
    std::rethrow_exception(failures[static_cast<std::size_t>(culprit)]);
  if constexpr (returns) {
    std::vector<Result> values;
    for (auto& result : results) values.push_back(std::move(*result));
    return values;
  }
}

}  // namespace annulus
