#pragma once
// An optional refinement of the communicator: ranks that share memory read each other's bytes where they lie.

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "annulus/comm/communicator.hpp"

namespace annulus {

/// Whether ranks read each other's rows where they lie: no step then waits for a copy, and one prefetched buffer of two is
/// not needed. Results are the same bits either way.
enum class ZeroCopy {
  automatic,  ///< where it is possible
  never,      ///< all bytes travel as messages
  always,     ///< refused where it is not possible
};

constexpr std::string_view name_of(ZeroCopy choice) {
  return choice == ZeroCopy::automatic ? "automatic" : choice == ZeroCopy::never ? "never" : "always";
}

/// A run of a window: bytes of the owner that the reader may read.
using WindowRuns = std::span<std::span<std::byte const> const>;

/// A window has at most this many runs.
constexpr std::size_t max_window_runs = 8;
/// Windows of one channel from one rank to another that may be under way before the reader has waited for the first.
constexpr std::size_t max_open_windows = 8;

/// One window, as the reader holds it. Satisfied by a movable T where
///  1. wait() returns when the owner has shared its bytes; it throws as Transfer's does, and does not wait for ever;
///  2. after wait(), runs() are the owner's bytes, in this rank's address space. They do not change, and stay readable
///     whatever becomes of the owner, until the window is given back;
///  3. release() says that this rank has read them; so does destroying the window, after wait();
///  4. destroying it without wait() (an exception is passing through) lets the peers' waits fail.
template <class T>
concept SharedWindow = std::movable<T> && requires(T window, T const& observed) {
  { window.wait() } -> std::same_as<void>;
  { observed.runs() } -> std::same_as<WindowRuns>;
  { window.release() }
  noexcept;
};

/// Satisfied by C where
///  1. shares_memory() says whether the ranks of this ring can read each other's memory, the same on all ranks and for good;
///     where they cannot, nothing below is called;
///  2. allocate(bytes) returns a movable Buffer with data() and size(), aligned to 64 bytes, contents unspecified. It
///     may be destroyed at any time, and outlives the communicator: the communicator keeps shared bytes for the readers;
///  3. open_window(channel, hop, out) is called as start_shift is, with an order of its own per channel: the runs `out`,
///     at most max_window_runs of them and all (but empty ones) within one Buffer, are shared to rank() + hop, and
///     rank() - hop shares_memory to this rank. It does not block. The bytes must not be written before a reclaim;
///  4. reclaim(first) returns when all windows of the Buffer whose data() is `first` have been given back. It throws
///     CommunicationError when they will not be, and does not wait for ever; the bytes must then not be written any
///     more.
template <class C>
concept ZeroCopyCommunicator = Communicator<C> &&
    requires(C& communicator, C const& observed, typename C::Buffer const& buffer, Channel channel, int hop,
             OutgoingBytes out, Index bytes, std::byte const* first) {
  { observed.shares_memory() } -> std::same_as<bool>;
  { communicator.allocate(bytes) } -> std::same_as<typename C::Buffer>;
  { buffer.data() } -> std::same_as<std::byte*>;
  { buffer.size() } -> std::same_as<Index>;
  { communicator.open_window(channel, hop, out) } -> SharedWindow;
  communicator.reclaim(first);
};

template <class C>
using WindowOf = decltype(std::declval<C&>().open_window(Channel{}, 1, OutgoingBytes{}));

/// Whether the ranks of this ring read each other's memory.
template <Communicator C>
bool shares_memory(C const& communicator) {
  if constexpr (ZeroCopyCommunicator<C>)
    return communicator.shares_memory();
  else
    return false;
}

}  // namespace annulus
