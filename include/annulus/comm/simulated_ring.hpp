#pragma once
// A ring inside one process: ranks are threads. They read each other's rows in place; a shift copies straight from the
// sender's bytes to the receiver's.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/lending.hpp"
#include "annulus/comm/simulated/lent_memory.hpp"
#include "annulus/comm/simulated/world.hpp"
#include "annulus/core/check.hpp"

namespace annulus {

struct SimulatedRingOptions {
  /// Always possible; `never` for a ring that works as one over several machines does.
  InPlace in_place = InPlace::automatic;
};

/// The communicator of one rank of run_ring. It lives as long as the function that run_ring calls.
class SimulatedRing {
 public:
  using memory_space = HostMemory;

  /// Both halves of a shift: this rank's message to the next rank, and the place for the previous rank's.
  class Transfer {
   public:
    Transfer(Transfer&& other) noexcept : world_(std::exchange(other.world_, nullptr)), shift_(other.shift_) {}
    Transfer& operator=(Transfer&& other) noexcept {
      if (this != &other) {
        Transfer const previous(std::move(*this));
        world_ = std::exchange(other.world_, nullptr);
        shift_ = other.shift_;
      }
      return *this;
    }

    ~Transfer() {
      if (!world_) return;
      world_->close(shift_.rank, "it dropped a transfer under way");
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
    Transfer(World& world, World::Shift const& shift) : world_(&world), shift_(shift) {}

    World* world_;
    World::Shift shift_;
  };

  /// Memory that this rank can lend.
  class Buffer {
   public:
    std::byte* data() const { return memory_ ? memory_->data() : nullptr; }
    Index size() const { return memory_ ? memory_->size : 0; }

   private:
    friend class SimulatedRing;
    explicit Buffer(std::shared_ptr<detail::LentMemory> memory) : memory_(std::move(memory)) {}
    std::shared_ptr<detail::LentMemory> memory_;
  };

  /// What the previous rank lends this one.
  class Loan {
   public:
    Loan(Loan&& other) noexcept { *this = std::move(other); }
    Loan& operator=(Loan&& other) noexcept {
      std::swap(world_, other.world_);
      std::swap(address_, other.address_);
      std::swap(lent_, other.lent_);
      std::swap(taken_, other.taken_);
      other.end();
      return *this;
    }
    ~Loan() { end(); }

    void wait() {
      if (taken_) return;
      lent_ = world_->take(address_);
      taken_ = true;
    }
    BorrowedBytes runs() const { return lent_.runs; }
    void give_back() noexcept { world_->give_back(address_.to, lent_); }

   private:
    friend class SimulatedRing;
    using World = detail::SimulatedWorld;
    Loan(World& world, World::Address const& address) : world_(&world), address_(address) {}

    void end() noexcept {
      World* const world = std::exchange(world_, nullptr);
      if (!world) return;
      if (taken_)
        world->give_back(address_.to, lent_);
      else
        world->close(address_.to, "it dropped a loan under way");
    }

    World* world_ = nullptr;
    World::Address address_{};
    detail::LentRuns lent_;
    bool taken_ = false;
  };

  Rank rank() const { return rank_; }
  int size() const { return world_->size(); }

  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    return {*world_, world_->post(sending(channel, hop, sent_), out, receiving(channel, hop, received_), in)};
  }

  bool lends() const { return options_.in_place != InPlace::never; }
  Buffer allocate(Index bytes) { return Buffer(memories_.make(rank_, size(), bytes)); }

  Loan start_loan(Channel channel, int hop, OutgoingBytes out) {
    detail::LentRuns const runs = memories_.runs_of(out);
    world_->lend(sending(channel, hop, lent_), runs);
    return {*world_, receiving(channel, hop, borrowed_)};
  }

  void reclaim(std::byte const* first) {
    if (auto const memory = memories_.of(first)) world_->reclaim(rank_, *memory);
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    world_->all_gather(rank_, rounds_++, mine, all);
  }

  void abandon(std::string const& reason) noexcept { world_->close(rank_, reason); }

  SimulatedRing(detail::SimulatedWorld& world, Rank rank, SimulatedRingOptions const& options)
      : world_(&world), rank_(rank), options_(options) {}

 private:
  /// How many have gone to a rank, or come from it, on a channel.
  using Counts = std::map<std::pair<Rank, Channel>, std::uint64_t>;
  using Address = detail::SimulatedWorld::Address;

  Address sending(Channel channel, int hop, Counts& counts) const {
    Rank const to = ring_neighbour(rank_, hop, size());
    return {rank_, to, channel, counts[{to, channel}]++};
  }
  Address receiving(Channel channel, int hop, Counts& counts) const {
    Rank const from = ring_neighbour(rank_, -hop, size());
    return {from, rank_, channel, counts[{from, channel}]++};
  }

  detail::SimulatedWorld* world_;
  Rank rank_;
  SimulatedRingOptions options_;
  detail::LentMemories memories_;
  Counts sent_, received_, lent_, borrowed_;
  std::uint64_t rounds_ = 0;
};

static_assert(LendingCommunicator<SimulatedRing>);

/// Runs function(ring) on `ranks` threads that form a ring, and returns when all have ended. Results, if the function
/// has any, come back in rank order. If a rank throws, the others' waits fail, and that rank's exception is thrown
/// here.
template <class Function>
auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options = {}) {
  using Result = std::invoke_result_t<Function&, SimulatedRing&>;
  constexpr bool returns = !std::is_void_v<Result>;
  check<UnsupportedError>(ranks >= 1, "run_ring over ", ranks, " ranks; at least one is needed");

  detail::SimulatedWorld world(ranks);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::conditional_t<returns, std::optional<std::conditional_t<returns, Result, char>>, char>> results(
      static_cast<std::size_t>(ranks));

  auto const run = [&](Rank rank) {
    SimulatedRing ring(world, rank, options);
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
