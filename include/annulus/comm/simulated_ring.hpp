#pragma once
// Communicator of a ring inside one process, whose ranks are threads. With zero-copy exchange they read each other's
// buffers; a shift copies straight from the sender's bytes to the receiver's.

#include <algorithm>
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

#include "annulus/comm/simulated/world.hpp"
#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/function_ref.hpp"

namespace annulus {

/// Options of run_ring.
struct SimulatedRingOptions {
  /// Zero-copy exchange is always possible here; `never` behaves like a ring over several machines.
  ZeroCopy zero_copy = ZeroCopy::automatic;
  /// The longest wait of a rank, after which the ring is closed on all ranks; at least 1 ms.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Runs function(ring) on `ranks` threads that form a ring, and returns when all have ended: nothing, or the functions'
/// results as a vector in rank order. If a rank throws, the others' waits fail, and run_ring rethrows that rank's
/// exception. A thread cannot be ended from outside: after a deadline has passed, run_ring returns only when the rank
/// that held up the ring has ended, too. Throws UnsupportedError if ranks < 1 or the timeout is out of range, and Error
/// if the system refuses the thread of a rank.
template <class Function>
auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options = {});

/// The communicator of one rank of run_ring, which makes it, and destroys it when the rank's function has returned.
class SimulatedRing {
  using World = detail::SimulatedWorld;

 public:
  using memory_space = HostMemory;

  /// Both messages of a shift: the one that this rank sends and the one that it receives.
  class Transfer {
   public:
    void wait() {
      if (!world_) return;
      world_->wait_until_delivered(world_.get_deleter().shift);
      world_.release();
    }

   private:
    friend class SimulatedRing;
    struct Drop {
      World::Shift shift;
      void operator()(World* world) const noexcept {
        world->close(shift.rank, "it dropped a pending transfer");
        world->withdraw(shift);
      }
    };
    Transfer(World& world, World::Shift const& shift) : world_(&world, Drop{shift}) {}

    std::unique_ptr<World, Drop> world_;  ///< null once the shift has been delivered
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
    void wait() {
      if (!pending_) return;
      auto const& [address, position] = pending_.get_deleter();
      detail::SharedRuns shared = pending_->take(address, position);
      taken_ = {pending_.release(), Release{address.to, std::move(shared)}};
    }
    WindowRuns runs() const { return taken_.get_deleter().shared.runs; }
    void release() noexcept { taken_.reset(); }

   private:
    friend class SimulatedRing;
    struct Drop {
      World::Address address;
      CallPosition position;  ///< of this rank when it opened the window
      void operator()(World* world) const noexcept { world->close(address.to, "it dropped a pending window"); }
    };
    struct Release {
      Rank reader;
      detail::SharedRuns shared;
      void operator()(World* world) noexcept { world->release(reader, shared); }
    };
    SharedWindow(World& world, World::Address const& address)
        : pending_(&world, Drop{address, world.position_of(address.to)}) {}

    std::unique_ptr<World, Drop> pending_;   ///< null once wait() has returned
    std::unique_ptr<World, Release> taken_;  ///< null before that, and once released
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
  Buffer allocate(Index bytes) {
    std::erase_if(buffers_, [](auto const& buffer) { return buffer.expired(); });
    auto memory = std::make_shared<detail::SharedBuffer>(rank_, size(), bytes);
    buffers_.push_back(memory);
    return Buffer(std::move(memory));
  }

  /// Throws CommunicationError if the ring is closed or `out` is not within one Buffer. Closes the ring and throws
  /// std::bad_alloc if memory is short.
  SharedWindow open_window(Channel channel, int hop, OutgoingBytes out) {
    return or_close([&]() -> SharedWindow {
      detail::SharedRuns shared;
      shared.memory = detail::buffer_of_window(out, [&](auto const& run) { return buffer_of(run); });
      for (auto const& run : out) shared.runs.push_back(run);
      world_->share(sending(channel, hop, shared_), shared);
      return {*world_, receiving(channel, hop, windows_)};
    });
  }

  /// Returns when no rank reads the Buffer at `first`. Throws CommunicationError if the ring is or becomes closed.
  void reclaim(std::byte const* first) {
    if (auto const memory = buffer_of({first, 1})) world_->reclaim(rank_, *memory);
  }

  /// Throws CommunicationError if the ring is or becomes closed, or if records differ in length.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    or_close([&] { world_->all_gather(rank_, rounds_++, mine, all); });
  }

  /// Closes the ring on all ranks; the errors of the others blame `culprit`, by default this rank.
  void abandon(std::string_view reason, Rank culprit) noexcept { world_->close(rank_, reason, culprit); }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank_); }

  FlightRecord& flight_record() { return world_->flight_record(rank_); }

 private:
  /// Numbers of exchanges with each peer, by stream_index.
  using Counts = std::vector<std::uint64_t>;

  template <class Function>
  friend auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options);
  /// The part of run_ring that does not depend on the type of the function.
  static void run_ranks(int ranks, detail::FunctionRef<void(SimulatedRing&)> function,
                        SimulatedRingOptions const& options);

  SimulatedRing(World& world, Rank rank, SimulatedRingOptions const& options)
      : world_(&world),
        rank_(rank),
        options_(options),
        sent_(detail::num_streams(world.size()), 0),
        received_(sent_),
        shared_(sent_),
        windows_(sent_) {}

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

  World::Address sending(Channel channel, int hop, Counts& counts) const {
    Rank const to = ring_neighbour(rank_, hop, size());
    return {rank_, to, channel, counts[detail::stream_index(channel, to)]++};
  }
  World::Address receiving(Channel channel, int hop, Counts& counts) const {
    Rank const from = ring_neighbour(rank_, -hop, size());
    return {from, rank_, channel, counts[detail::stream_index(channel, from)]++};
  }

  /// The live buffer of this rank that holds the bytes; null if there is none.
  std::shared_ptr<detail::SharedBuffer> buffer_of(std::span<std::byte const> bytes) const {
    for (auto const& entry : buffers_)
      if (auto memory = entry.lock(); memory && memory->holds(bytes)) return memory;
    return nullptr;
  }

  World* world_;
  Rank rank_;
  SimulatedRingOptions options_;
  std::vector<std::weak_ptr<detail::SharedBuffer>> buffers_;
  Counts sent_, received_, shared_, windows_;
  std::uint64_t rounds_ = 0;
};

static_assert(ZeroCopyCommunicator<SimulatedRing> && CallRecordingCommunicator<SimulatedRing>);

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE void SimulatedRing::run_ranks(int ranks, detail::FunctionRef<void(SimulatedRing&)> function,
                                             SimulatedRingOptions const& options) {
  check<UnsupportedError>(ranks >= 1, "run_ring over ", ranks, " ranks; at least one is needed");
  check<UnsupportedError>(options.timeout.count() >= 1, "SimulatedRingOptions: timeout is ", options.timeout.count(),
                          " ms; at least 1 ms is accepted");

  auto const count = static_cast<std::size_t>(ranks);
  detail::SimulatedWorld world(ranks, options.timeout);
  std::vector<std::exception_ptr> failures(count);
  auto const run = [&](Rank rank) {
    auto const r = static_cast<std::size_t>(rank);
    try {
      SimulatedRing ring(world, rank, options);
      function(ring);
      world.leave(rank);
    } catch (std::exception const& error) {
      failures[r] = std::current_exception();
      world.close(rank, error.what());
    } catch (...) {
      failures[r] = std::current_exception();
      world.close(rank, "it threw an exception of unknown type");
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    auto const start = [&](Rank rank) {
      try {
        threads.emplace_back(run, rank);
      } catch (std::exception const& error) {
        throw Error(message_of("run_ring over ", ranks, " ranks needs ", ranks - 1,
                               " threads; the system refuses the thread of rank ", rank, ": ", error.what()));
      }
    };
    for (Rank rank = 1; rank < ranks; ++rank) try {
        start(rank);
      } catch (...) {
        world.close(rank, "no thread could be created for it");
        failures[static_cast<std::size_t>(rank)] = std::current_exception();
        break;
      }
    run(0);
  }
  // The rank that closed the ring failed first; the exceptions of the others follow from that.
  if (Rank const closer = world.closer(); closer != CommunicationError::unknown)
    if (auto const& first = failures[static_cast<std::size_t>(closer)]) std::rethrow_exception(first);
  for (auto const& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

#endif

template <class Function>
auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options) {
  using Result = std::invoke_result_t<Function&, SimulatedRing&>;
  if constexpr (std::is_void_v<Result>) {
    auto const call = [&](SimulatedRing& ring) { function(ring); };
    SimulatedRing::run_ranks(ranks, call, options);
  } else {
    std::vector<std::optional<Result>> results(static_cast<std::size_t>(std::max(ranks, 0)));
    auto const call = [&](SimulatedRing& ring) { results[static_cast<std::size_t>(ring.rank())] = function(ring); };
    SimulatedRing::run_ranks(ranks, call, options);
    std::vector<Result> values;
    for (auto& result : results) values.push_back(std::move(*result));
    return values;
  }
}

}  // namespace annulus
