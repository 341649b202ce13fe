#pragma once
// One rank's end of a simulated ring: messages that are copied at once, and shared buffers.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "annulus/comm/threads/message_endpoint.hpp"
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

/// A message that is copied when both of its ends are posted.
struct SimulatedMessage : ThreadMessage {
  /// In a ring of two ranks both directions arrive from the same one, and in each the sender may post the next message
  /// while the receiver still uses the last one.
  static constexpr int made_at_once = 4;
};

/// State of a simulated ring that all ranks use.
struct SimulatedWorld : ThreadRing {
  SimulatedWorld(int size, SimulatedRingOptions const& chosen);

  SimulatedRingOptions const options;
};

/// Storage is reused, so a repeated exchange allocates nothing.
///
/// Concurrency, in addition to that of the base.
///  * start_shift, complete, drop, open_window, reclaim, allocate: called by the thread of the rank. All but the last
///    take the lock, and wait without it.
///  * EndReading: called by any thread that destroys a Window; takes the lock.
///  * shares_memory: called by any thread; what it reads is constant.
///  * end_reading: called with the lock held.
class SimulatedEndpoint : public MessageEndpoint<SimulatedEndpoint, SimulatedMessage> {
  /// Ends the reading of a window.
  struct EndReading {
    std::shared_ptr<SharedBuffer> memory;
    void operator()(SimulatedEndpoint* reader) const noexcept {
      std::lock_guard const lock(reader->world_.mutex);
      reader->end_reading(*memory);
    }
  };

 public:
  /// A window on the buffer of another rank; `runs` are set once it is complete.
  struct Window {
    Address address;
    CallPosition position;  ///< of this rank when it opened the window
    ShortList<std::span<std::byte const>, max_window_runs> runs{};
    std::unique_ptr<SimulatedEndpoint, EndReading> reading{};
  };

  SimulatedEndpoint(SimulatedWorld& world, Rank rank, int size)
      : MessageEndpoint(world, rank, size), world_(world), windows_(rank, size) {
    // At most this many windows are pending in a pass: the rows of all others, and results from three buffers of each.
    arriving_.reserve(4 * static_cast<std::size_t>(size));
  }

  bool shares_memory() const { return world_.options.zero_copy != ZeroCopy::never; }

  using MessageEndpoint::complete;
  using MessageEndpoint::drop;

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

 private:
  friend class MessageEndpoint<SimulatedEndpoint, SimulatedMessage>;

  // For the base: copies are made at once, by the rank that posts the second end.
  static std::unique_ptr<SimulatedMessage> make_message(Address const&) { return std::make_unique<SimulatedMessage>(); }
  static void copy(SimulatedMessage const& message) {
    for (std::size_t p = 0; p < message.in.size(); ++p)
      if (!message.in[p].empty()) std::memcpy(message.in[p].data(), message.out[p].data(), message.in[p].size());
  }
  static void await_copy(SimulatedMessage const&, PollingTimer const&) {}

  /// A window that this rank has not taken yet; all runs lie in `memory`, which is null if all are empty.
  struct Arriving {
    Address address;
    CallPosition sent_at;
    ShortList<std::span<std::byte const>, max_window_runs> runs;
    std::shared_ptr<SharedBuffer> memory;
  };

  /// open_window(), in a ring that is closed if this fails.
  Window share(Channel channel, int hop, OutgoingBytes out) {
    Arriving shared{windows_.to_next(channel, hop), record_.position(), {}, {}};
    shared.memory = buffer_of_window(out, [&](auto const& run) { return buffer_of(run); });
    for (auto const& run : out) shared.runs.push_back(run);
    std::lock_guard const lock(world_.mutex);
    require_open();
    SimulatedEndpoint& reader = of(shared.address.to);
    reader.arriving_.push_back(shared);
    if (shared.memory) ++shared.memory->readers[static_cast<std::size_t>(reader.rank_)];
    reader.changed_.notify_all();
    return {windows_.from_next(channel, hop), record_.position()};
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

  SimulatedWorld& world_;
  // Used by this rank's thread alone.
  MessageNumbers windows_;
  std::vector<std::weak_ptr<SharedBuffer>> buffers_;
  // Guarded by the lock.
  std::vector<Arriving> arriving_;  ///< windows opened for this rank, by the owners of their buffers
};

inline SimulatedWorld::SimulatedWorld(int size, SimulatedRingOptions const& chosen)
    : ThreadRing(size, chosen.timeout, {}), options(chosen) {
  int const near = options.near_ranks == 0 ? size : options.near_ranks;
  for (Rank rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<SimulatedEndpoint>(*this, rank, size));
    near_ranks.push_back(rank / near * near);
  }
}

}  // namespace detail
}  // namespace annulus
