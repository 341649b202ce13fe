#pragma once
// The communicator policy: it moves bytes around a ring of ranks and knows no attention.

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

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
///     reason. It does not block and does not throw.
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

template <class C>
using TransferOf = decltype(std::declval<C&>().start_shift(Channel{}, 1, OutgoingBytes{}, IncomingBytes{}));

/// The rank `hop` places on (or back, for a negative hop).
constexpr Rank ring_neighbour(Rank rank, int hop, int size) { return ((rank + hop) % size + size) % size; }

}  // namespace annulus
