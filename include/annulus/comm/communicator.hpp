#pragma once
// Communicator policy: moves bytes around a ring of ranks and knows nothing of attention.

#include <concepts>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "annulus/comm/flight_record.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

/// A stream of shifts. Shifts on different channels never match each other, and complete in any order.
enum class Channel : int {
  prefetched,  ///< what the next step needs; sent before the compute of a step
  carried,     ///< what a step has added to; sent after its compute
  reduction,   ///< small sums over all ranks
};

constexpr std::string_view name_of(Channel channel) {
  return channel == Channel::prefetched ? "prefetched" : channel == Channel::carried ? "carried" : "reduction";
}

/// Runs of bytes that are sent or received together. Run p of the sender arrives in run p of the receiver, which must
/// have the same length; empty runs are legal.
using OutgoingBytes = std::span<std::span<std::byte const> const>;
using IncomingBytes = std::span<std::span<std::byte> const>;

/// A pending exchange. Satisfied by a movable T where
///  1. wait() returns when the incoming bytes have arrived and the outgoing ones may be overwritten;
///  2. wait() throws CommunicationError when a peer is lost or late, at the communicator's deadline at the latest;
///  3. destroying it without wait() (an exception unwinds the stack) returns when no rank reads or writes the caller's
///     bytes any more, and makes the peers' waits fail. start_shift copies the lists of runs, not the bytes.
template <class T>
concept Transfer = std::movable<T> && requires(T transfer) {
  { transfer.wait() } -> std::same_as<void>;
};

/// A transfer whose bytes move only inside calls of the communicator. progress() advances them and does not block; an
/// error that it meets is thrown by wait(). Called by the thread that calls the communicator.
template <class T>
concept ProgressingTransfer = Transfer<T> && requires(T transfer) {
  { transfer.progress() } noexcept;
};

/// One rank's end of a ring. Satisfied by C where
///  1. memory_space is the memory space of the bytes that shifts move;
///  2. 0 <= rank() < size(); a rank is a place in the ring;
///  3. start_shift(channel, hop, out, in) is called by all ranks with the same channel and hop (1 <= hop < size()), in
///     the same order per channel; `out` goes to rank() + hop and `in` comes from rank() - hop, both modulo size(). It
///     does not block. Several shifts may be pending;
///  4. all_gather(mine, all) is called by all ranks; `all` (host memory, size() * mine.size() bytes) receives every
///     rank's record in rank order. It blocks; records are small;
///  5. abandon(reason) closes the ring on behalf of this rank: peers that wait, now or later, throw CommunicationError
///     with the reason. It does not block and does not throw. It takes a std::string, or a std::string_view, which
///     needs no allocation when memory is short; and optionally, as a second argument, the rank to blame, which the
///     peers' errors then name instead of this rank;
///  6. every wait has a deadline, which the communicator chooses: when it has passed, the ring is closed on all ranks.
/// One thread per rank calls a communicator.
template <class C>
concept Communicator =
    requires(C& communicator, C const& observed, Channel channel, int hop, OutgoingBytes out, IncomingBytes in,
             std::span<std::byte const> mine, std::span<std::byte> all, std::string const& reason) {
      typename C::memory_space;
      { observed.rank() } -> std::same_as<Rank>;
      { observed.size() } -> std::same_as<int>;
      { communicator.start_shift(channel, hop, out, in) } -> Transfer;
      communicator.all_gather(mine, all);
      { communicator.abandon(reason) } noexcept;
    };

/// Optional refinement: a communicator with a flight record, in which the caller notes its calls and steps. Every
/// message carries the position noted last, the receiver compares it with its own, and errors show it.
template <class C>
concept CallRecordingCommunicator = Communicator<C> && requires(C& communicator) {
  { communicator.flight_record() } -> std::same_as<FlightRecord&>;
};

/// Abandons the ring, also when memory is short. `culprit`: the rank to blame; unknown: this rank.
template <Communicator C>
void abandon_ring(C& communicator, std::string_view reason, Rank culprit = CommunicationError::unknown) noexcept {
  if (culprit == CommunicationError::unknown) culprit = communicator.rank();
  if constexpr (requires { communicator.abandon(reason, culprit); }) {
    communicator.abandon(reason, culprit);
  } else if constexpr (requires { communicator.abandon(reason); }) {
    communicator.abandon(reason);
  } else {
    std::string copy;
    try {
      copy = reason;
    } catch (std::exception const&) {  // memory is short: the peers' errors lack the reason
    }
    communicator.abandon(copy);
  }
}

/// Returns function(). If it throws, abandons the ring, so that the peers' waits fail at once, and rethrows.
template <Communicator C, class Function>
decltype(auto) or_abandon(C& communicator, Function&& function) {
  try {
    return function();
  } catch (CommunicationError const& error) {
    abandon_ring(communicator, error.what(), error.neighbour());
    throw;
  } catch (std::exception const& error) {
    abandon_ring(communicator, error.what());
    throw;
  } catch (...) {
    abandon_ring(communicator, "an exception of unknown type");
    throw;
  }
}

template <class C>
using TransferOf = decltype(std::declval<C&>().start_shift(Channel{}, 1, OutgoingBytes{}, IncomingBytes{}));

/// The rank `hop` places after `rank` in a ring of `size` ranks, or before it for a negative hop.
constexpr Rank ring_neighbour(Rank rank, int hop, int size) { return ((rank + hop) % size + size) % size; }

}  // namespace annulus
