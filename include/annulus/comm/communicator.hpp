#pragma once
// The communicator policy: it moves bytes around a ring of ranks and knows no attention.

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
#include "annulus/core/index.hpp"
#include "annulus/core/memory_space.hpp"

namespace annulus {

/// Shifts on different channels never match each other, and complete in any order.
enum class Channel : int {
  prefetched,  ///< what the next step needs; leaves before the compute of a step
  carried,     ///< what a step has added to; leaves after it
  reduction,   ///< small sums over all ranks
};

constexpr std::string_view name_of(Channel channel) {
  return channel == Channel::prefetched ? "prefetched" : channel == Channel::carried ? "carried" : "reduction";
}

/// Runs of bytes that leave or arrive together. Run p of the sender arrives in run p of the receiver, which has the
/// same length; empty runs are legal.
using OutgoingBytes = std::span<std::span<std::byte const> const>;
using IncomingBytes = std::span<std::span<std::byte> const>;

/// One exchange under way. Satisfied by a movable T where
///  1. wait() returns when the incoming bytes are there and the outgoing ones may be overwritten;
///  2. wait() throws CommunicationError when a peer is lost or late, and does not wait for ever;
///  3. destroying it without wait() (an exception is passing through) leaves no one reading or writing the caller's
///     bytes, and lets the peers' waits fail. The lists of runs are copied by start_shift, the bytes are not.
template <class T>
concept Transfer = std::movable<T> && requires(T transfer) {
  { transfer.wait() } -> std::same_as<void>;
};

/// A transfer whose bytes move only while the communicator is at work: progress() lets them, and does not block; what
/// fails then is thrown by wait(). Called by the thread that calls the communicator.
template <class T>
concept ProgressingTransfer = Transfer<T> && requires(T transfer) {
  { transfer.progress() } noexcept;
};

/// Satisfied by C where
///  1. memory_space says where the bytes of a shift live;
///  2. 0 <= rank() < size(); ranks are places in the ring;
///  3. start_shift(channel, hop, out, in) is called by all ranks with the same channel and hop (1 <= hop < size()), in the
///     same order per channel; `out` goes to rank() + hop and `in` comes from rank() - hop, both modulo size(). It does
///     not block. Several shifts may be under way;
///  4. all_gather(mine, all) is called by all ranks; `all` (host memory, size() * mine.size() bytes) receives every
///     rank's record in rank order. It blocks; records are small;
///  5. abandon(reason) says that this rank gives up: peers that wait, now or later, throw CommunicationError with the
///     reason. It does not block and does not throw. It takes a std::string, or a std::string_view, for which nothing
///     has to be allocated when memory is short; and, if it likes, as a second argument the rank to blame, which the
///     peers' errors then name instead of this rank;
///  6. no wait lasts longer than a deadline of the communicator: when it has passed, the ring is closed on all ranks.
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

/// An optional refinement: the communicator keeps a flight record, in which the caller notes its calls and steps. Every
/// message carries the position noted last, the receiver compares it with its own, and errors show it.
template <class C>
concept CallRecordingCommunicator = Communicator<C> && requires(C& communicator) {
  { communicator.flight_record() } -> std::same_as<FlightRecord&>;
};

/// Abandons the ring; allocates nothing that could fail. `culprit`: the rank to blame; unknown: this rank.
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
    } catch (std::exception const&) {  // the peers learn of the end without its reason
    }
    communicator.abandon(copy);
  }
}

/// Calls function(). Where it throws, the peers learn of it at once: this rank cannot do its part any more.
template <Communicator C, class Function>
void or_abandon(C& communicator, Function&& function) {
  try {
    function();
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

/// The rank `hop` places on (or back, for a negative hop).
constexpr Rank ring_neighbour(Rank rank, int hop, int size) { return ((rank + hop) % size + size) % size; }

}  // namespace annulus
