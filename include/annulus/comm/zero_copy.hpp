#pragma once
// Zero-copy exchange, an optional refinement of the communicator: ranks that share memory read each other's buffers
// directly through windows.

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "annulus/comm/communicator.hpp"

namespace annulus {

/// Whether ranks exchange rows through windows: no step then waits for a copy, and one of the two prefetch buffers is
/// not needed. Results are the same bits either way.
enum class ZeroCopy {
  automatic,  ///< if the ranks share memory
  never,      ///< all bytes are sent as messages
  always,     ///< refused if the ranks do not share memory
};

constexpr std::string_view name_of(ZeroCopy choice) {
  return choice == ZeroCopy::automatic ? "automatic" : choice == ZeroCopy::never ? "never" : "always";
}

/// The runs of a window: bytes of the owner's buffer that the reader may read.
using WindowRuns = std::span<std::span<std::byte const> const>;

/// Maximum number of runs of a window.
constexpr std::size_t max_window_runs = 8;
/// Maximum number of windows that a rank may open to another on one channel before the reader has waited for the first.
constexpr std::size_t max_open_windows = 8;

/// The reader's handle of a window. Satisfied by a movable T where
///  1. wait() returns when the owner has shared its bytes; it throws CommunicationError when the owner is lost or late,
///     at the communicator's deadline at the latest;
///  2. after wait(), runs() are the owner's bytes, in this rank's address space. They do not change, and stay readable
///     even if the owner fails or ends, until the window is released;
///  3. release() declares that this rank has read them; so does destroying the window after wait();
///  4. destroying it without wait() (an exception unwinds the stack) makes the peers' waits fail.
template <class T>
concept SharedWindow = std::movable<T> && requires(T window, T const& observed) {
  { window.wait() } -> std::same_as<void>;
  { observed.runs() } -> std::same_as<WindowRuns>;
  { window.release() }
  noexcept;
};

/// A communicator with zero-copy exchange. Satisfied by C where
///  1. shares_memory() says whether the ranks of this ring can read each other's memory; the answer is the same on all
///     ranks and never changes; if it is false, nothing below is called;
///  2. allocate(bytes) returns a movable Buffer with data() and size(), aligned to 64 bytes, contents unspecified. It
///     may be destroyed at any time, before or after the communicator: shared bytes are kept for their readers;
///  3. open_window(channel, hop, out) is called by all ranks like start_shift, in an order of its own per channel. It
///     shares the runs `out` with rank() + hop and returns the window on the runs that rank() - hop shares with this
///     rank. `out` has at most max_window_runs runs; those that are not empty lie within one Buffer. It does not block.
///     The bytes must not be written before they are reclaimed;
///  4. reclaim(first) returns when all windows on the Buffer whose data() is `first` have been released. It throws
///     CommunicationError if a reader is lost or late; the bytes must then not be written any more.
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

/// True if the ranks of this ring can read each other's memory; false for a communicator without zero-copy exchange.
template <Communicator C>
bool shares_memory(C const& communicator) {
  if constexpr (ZeroCopyCommunicator<C>)
    return communicator.shares_memory();
  else
    return false;
}

}  // namespace annulus
