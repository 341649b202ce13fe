#pragma once
// Communicator of a ring inside one process, whose ranks are threads. With zero-copy exchange they read each other's
// buffers; a shift copies straight from the sender's bytes to the receiver's.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/simulated/shared_buffer.hpp"
#include "annulus/comm/simulated/world.hpp"
#include "annulus/comm/zero_copy.hpp"
#include "annulus/core/error.hpp"

namespace annulus {

/// Options of run_ring.
struct SimulatedRingOptions {
  /// Zero-copy exchange is always possible here; `never` behaves like a ring over several machines.
  ZeroCopy zero_copy = ZeroCopy::automatic;
  /// The longest wait of a rank, after which the ring is closed on all ranks; at least 1 ms.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// The communicator of one rank of run_ring, which destroys it when the rank's function has returned.
class SimulatedRing {
 public:
  using memory_space = HostMemory;

  /// Both messages of a shift: the one that this rank sends and the one that it receives.
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
      world_->close(shift_.rank, "it dropped a pending transfer");
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

  /// Memory that this rank can share with the others.
  class Buffer {
   public:
    std::byte* data() const { return memory_ ? memory_->data() : nullptr; }
    Index size() const { return memory_ ? memory_->size : 0; }

   private:
    friend class SimulatedRing;
    explicit Buffer(std::shared_ptr<detail::SharedBuffer> memory) : memory_(std::move(memory)) {}
    std::shared_ptr<detail::SharedBuffer> memory_;
  };

  /// A window on a buffer of another rank, held by this one.
  class SharedWindow {
   public:
    SharedWindow(SharedWindow&& other) noexcept { *this = std::move(other); }
    SharedWindow& operator=(SharedWindow&& other) noexcept {
      std::swap(world_, other.world_);
      std::swap(address_, other.address_);
      std::swap(position_, other.position_);
      std::swap(shared_, other.shared_);
      std::swap(taken_, other.taken_);
      other.end();
      return *this;
    }
    ~SharedWindow() { end(); }

    void wait() {
      if (taken_) return;
      shared_ = world_->take(address_, position_);
      taken_ = true;
    }
    WindowRuns runs() const { return shared_.runs; }
    void release() noexcept { world_->release(address_.to, shared_); }

   private:
    friend class SimulatedRing;
    using World = detail::SimulatedWorld;
    SharedWindow(World& world, World::Address const& address)
        : world_(&world), address_(address), position_(world.position_of(address.to)) {}

    void end() noexcept {
      World* const world = std::exchange(world_, nullptr);
      if (!world) return;
      if (taken_)
        world->release(address_.to, shared_);
      else
        world->close(address_.to, "it dropped a pending window");
    }

    World* world_ = nullptr;
    World::Address address_{};
    CallPosition position_{};  ///< of this rank when it opened the window
    detail::SharedRuns shared_;
    bool taken_ = false;
  };

  Rank rank() const { return rank_; }
  int size() const { return world_->size(); }

  /// Throws CommunicationError if the ring is closed. Closes it and throws std::bad_alloc if memory is short.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    return or_close([&]() -> Transfer {
      return {*world_, world_->post(sending(channel, hop, sent_), out, receiving(channel, hop, received_), in)};
    });
  }

  bool shares_memory() const { return options_.zero_copy != ZeroCopy::never; }
  /// Throws std::bad_alloc.
  Buffer allocate(Index bytes) { return Buffer(memories_.make(rank_, size(), bytes)); }

  /// Throws CommunicationError if the ring is closed or `out` is not within one Buffer. Closes the ring and throws
  /// std::bad_alloc if memory is short.
  SharedWindow open_window(Channel channel, int hop, OutgoingBytes out) {
    return or_close([&]() -> SharedWindow {
      detail::SharedRuns const runs = memories_.runs_of(out);
      world_->share(sending(channel, hop, shared_), runs);
      return {*world_, receiving(channel, hop, windows_)};
    });
  }

  /// Returns when no rank reads the Buffer at `first`. Throws CommunicationError if the ring is or becomes closed.
  void reclaim(std::byte const* first) {
    if (auto const memory = memories_.of(first)) world_->reclaim(rank_, *memory);
  }

  /// Throws CommunicationError if the ring is or becomes closed, or if records differ in length.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    or_close([&] { world_->all_gather(rank_, rounds_++, mine, all); });
  }

  /// Closes the ring on all ranks; the errors of the others blame `culprit`, by default this rank.
  void abandon(std::string_view reason, Rank culprit) noexcept { world_->close(rank_, reason, culprit); }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank_); }

  FlightRecord& flight_record() { return world_->flight_record(rank_); }

  SimulatedRing(detail::SimulatedWorld& world, Rank rank, SimulatedRingOptions const& options)
      : world_(&world),
        rank_(rank),
        options_(options),
        sent_(channels * static_cast<std::size_t>(world.size()), 0),
        received_(sent_),
        shared_(sent_),
        windows_(sent_) {}

 private:
  static constexpr std::size_t channels = 3;
  /// Numbers of exchanges with each peer, by peer and channel.
  using Counts = std::vector<std::uint64_t>;
  using Address = detail::SimulatedWorld::Address;

  /// Closes the ring if function() fails: its exchange is only begun, and would pair wrongly later.
  template <class Function>
  std::invoke_result_t<Function&> or_close(Function&& function) {
    try {
      return function();
    } catch (CommunicationError const&) {
      throw;
    } catch (std::exception const& error) {
      world_->close(rank_, error.what());
      throw;
    }
  }

  static std::uint64_t& count(Counts& counts, Rank peer, Channel channel) {
    return counts[static_cast<std::size_t>(peer) * channels + static_cast<std::size_t>(channel)];
  }
  Address sending(Channel channel, int hop, Counts& counts) const {
    Rank const to = ring_neighbour(rank_, hop, size());
    return {rank_, to, channel, count(counts, to, channel)++};
  }
  Address receiving(Channel channel, int hop, Counts& counts) const {
    Rank const from = ring_neighbour(rank_, -hop, size());
    return {from, rank_, channel, count(counts, from, channel)++};
  }

  detail::SimulatedWorld* world_;
  Rank rank_;
  SimulatedRingOptions options_;
  detail::SharedBuffers memories_;
  Counts sent_, received_, shared_, windows_;
  std::uint64_t rounds_ = 0;
};

static_assert(ZeroCopyCommunicator<SimulatedRing> && CallRecordingCommunicator<SimulatedRing>);

namespace detail {

/// The exception to report if the thread of a rank cannot be created.
inline std::exception_ptr no_thread_for(Rank rank, int ranks, std::exception const& error) noexcept {
  try {
    return std::make_exception_ptr(Error(message_of("run_ring over ", ranks, " ranks needs ", ranks - 1,
                                                    " threads; the system refuses the thread of rank ", rank, ": ",
                                                    error.what())));
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace detail

/// Runs function(ring) on `ranks` threads that form a ring, and returns when all have ended: nothing, or the functions'
/// results as a vector in rank order. If a rank throws, the others' waits fail, and run_ring rethrows that rank's
/// exception. A thread cannot be ended from outside: after a deadline has passed, run_ring returns only when the rank
/// that held up the ring has ended, too. Throws UnsupportedError if ranks < 1 or the timeout is out of range, and Error
/// if the system refuses the thread of a rank.
template <class Function>
auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options = {}) {
  using Result = std::invoke_result_t<Function&, SimulatedRing&>;
  constexpr bool returns = !std::is_void_v<Result>;
  check<UnsupportedError>(ranks >= 1, "run_ring over ", ranks, " ranks; at least one is needed");

  check<UnsupportedError>(options.timeout.count() >= 1, "SimulatedRingOptions: timeout is ", options.timeout.count(),
                          " ms; at least 1 ms is accepted");

  detail::SimulatedWorld world(ranks, options.timeout);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::conditional_t<returns, std::optional<std::conditional_t<returns, Result, char>>, char>> results(
      static_cast<std::size_t>(ranks));

  auto const run = [&](Rank rank) {
    try {
      SimulatedRing ring(world, rank, options);
      if constexpr (returns)
        results[static_cast<std::size_t>(rank)] = function(ring);
      else
        function(ring);
      world.leave(rank);
    } catch (std::exception const& error) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      world.close(rank, error.what());
    } catch (...) {
      failures[static_cast<std::size_t>(rank)] = std::current_exception();
      world.close(rank, "it threw an exception of unknown type");
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(ranks));
    for (Rank rank = 1; rank < ranks; ++rank) try {
        threads.emplace_back(run, rank);
      } catch (std::exception const& error) {
        world.close(rank, "no thread could be created for it");
        failures[static_cast<std::size_t>(rank)] = detail::no_thread_for(rank, ranks, error);
        break;
      }
    run(0);
  }
  // The rank that closed the ring failed first; the exceptions of the others follow from that.
  if (Rank const closer = world.closer(); closer != CommunicationError::unknown)
    if (auto const& first = failures[static_cast<std::size_t>(closer)]) std::rethrow_exception(first);
  for (auto const& failure : failures)
    if (failure) std::rethrow_exception(failure);
  if constexpr (returns) {
    std::vector<Result> values;
    for (auto& result : results) values.push_back(std::move(*result));
    return values;
  }
}

}  // namespace annulus
