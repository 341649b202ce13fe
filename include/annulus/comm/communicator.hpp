#pragma once
// Communicator policy: moves bytes around a ring of ranks and knows nothing of attention. Optional refinements: flight
// records, near ranks, and zero-copy exchange between ranks that share memory and read each other's buffers through
// windows.

#include <concepts>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "annulus/comm/flight_record.hpp"
#include "annulus/core/channel.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

/// Runs of bytes that are sent or received together. Run p of the sender arrives in run p of the receiver, which must
/// have the same length; empty runs are legal.
using OutgoingBytes = std::span<std::span<std::byte const> const>;
/// Runs of bytes to receive into; see OutgoingBytes.
using IncomingBytes = std::span<std::span<std::byte> const>;

/// A pending exchange. Satisfied by a movable T where
///  1. wait() returns when the incoming bytes have arrived and the outgoing ones may be overwritten. Afterwards the
///     transfer may be assigned to or destroyed, without effect;
///  2. wait() throws CommunicationError when a peer is lost or late, at the communicator's deadline at the latest, and
///     when the sender's runs differ in number or length from those to receive into. Only the receiver detects this:
///     its error names the sender as neighbour(), and its text has the word "expected". When wait() has thrown, no rank
///     reads or writes the caller's bytes any more;
///  3. destroying it without wait() (an exception unwinds the stack) returns when no rank reads or writes the caller's
///     bytes any more, and makes the peers' waits fail. start_shift copies the lists of runs, not the bytes;
///  4. pending transfers are waited for in any order, those of one channel as well, and in another order on each rank.
template <class T>
concept Transfer = std::movable<T> && requires(T transfer) {
  { transfer.wait() } -> std::same_as<void>;
};

/// A transfer whose bytes move only inside calls of the communicator. progress() advances them and does not block; an
/// error that it meets is thrown by wait(). Called by the thread that calls the communicator.
template <class T>
concept ProgressingTransfer = Transfer<T> && requires(T transfer) {
  { transfer.progress() }
  noexcept;
};

namespace detail {

/// A transfer in memory space S, whose wait takes the queue unless that is empty.
template <class T, class S>
concept TransferIn = (works_at_once<S> && Transfer<T>) ||
                     (std::movable<T> && requires(T transfer, QueueOf<S> queue) { transfer.wait(queue); });

/// A communicator that shifts bytes in memory space S.
template <class C, class S>
concept ShiftsIn = WorkQueue<QueueOf<S>> &&
    ((works_at_once<S> &&
      requires(C & communicator, Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
        { communicator.start_shift(channel, hop, out, in) } -> Transfer;
      }) ||
     (!works_at_once<S> &&
      requires(C & communicator, Channel channel, int hop, OutgoingBytes out, IncomingBytes in, QueueOf<S> queue) {
        { communicator.start_shift(channel, hop, out, in, queue) } -> TransferIn<S>;
        communicator.finish(queue);
      }));

/// Starts a shift after the work on the queue.
template <class C, class Queue>
auto start_shift(C& communicator, Channel channel, int hop, OutgoingBytes out, IncomingBytes in, Queue const& queue) {
  if constexpr (works_at_once<typename C::memory_space>)
    return communicator.start_shift(channel, hop, out, in);
  else
    return communicator.start_shift(channel, hop, out, in, queue);
}

/// Work that is put on the queue from now on begins when the transfer has ended, or the window shows its bytes.
template <class T, class Queue>
void wait_for(T& transfer, Queue const& queue) {
  if constexpr (std::is_empty_v<Queue>)
    transfer.wait();
  else
    transfer.wait(queue);
}

/// Returns when all work on the queue is done.
template <class C, class Queue>
void finish_queue(C& communicator, Queue const& queue) {
  if constexpr (!std::is_empty_v<Queue>) communicator.finish(queue);
}

}  // namespace detail

/// One rank's end of a ring. Satisfied by C where
///  1. memory_space is the memory space of the bytes that shifts move;
///  2. 0 <= rank() < size(); a rank is a place in the ring;
///  3. start_shift(channel, hop, out, in) is called by all ranks with the same channel and hop (1 <= hop < size();
///     alone, a rank sends to itself with hop 1), in the same order per channel; `out` goes to rank() + hop and `in`
///     comes from rank() - hop, both modulo size(). It does not block. Several shifts may be pending, of one channel as
///     well;
///  4. all_gather(mine, all) is called by all ranks; `all` (host memory, size() * mine.size() bytes) receives every
///     rank's record in rank order. It blocks; records are small, and may be empty. Shifts may be pending meanwhile.
///     When it has returned on one rank, all others get the records as well, whatever this rank does next, so that all
///     can throw because of what they have read. Where records differ in length, all ranks throw CommunicationError;
///  5. abandon(reason) closes the ring on behalf of this rank: peers that wait, now or later, throw CommunicationError
///     at once, with the reason in its text and this rank as neighbour(), and so does this rank if it calls the ring
///     again. It does not block and does not throw. It takes a std::string, or a std::string_view, which needs no
///     allocation when memory is short; and optionally, as a second argument, the rank to blame, which the errors then
///     name instead of this rank. Destroying a communicator whose peers need more of it makes their waits fail as well,
///     once they have received what it has sent;
///  6. every wait has a deadline, which the communicator chooses: when it has passed, the ring is closed on all ranks.
///     A closed ring stays closed: each further call throws the CommunicationError that closed it. Such an error has
///     the rank that throws it as rank(), and names ranks in its text as "rank 3";
///  7. in a memory space whose queue is not empty, start_shift has the queue as its last argument, and the shift begins
///     after the work that is on it; Transfer::wait(queue) returns at once, or when the peer has posted its side, and
///     work that is put on the queue from then on begins when `in` has arrived and `out` may be overwritten;
///     finish(queue) returns when all work on the queue is done, at the deadline at the latest: it is the one host wait
///     of a call, and throws CommunicationError that names the lost or late peer. There, abandon(reason) may return
///     later: when no exchange that is on a queue reads or writes this rank's bytes.
///
/// One thread per rank calls a communicator.
template <class C>
concept Communicator = detail::ShiftsIn<C, typename C::memory_space> &&
    requires(C& communicator, C const& observed, std::span<std::byte const> mine, std::span<std::byte> all,
             std::string const& reason) {
  { observed.rank() } -> std::same_as<Rank>;
  { observed.size() } -> std::same_as<int>;
  communicator.all_gather(mine, all);
  { communicator.abandon(reason) }
  noexcept;
};

/// Optional refinement: a communicator with a flight record, in which the caller notes its calls and steps. Every
/// message carries the position noted last, the receiver compares it with its own, and errors show it.
template <class C>
concept CallRecordingCommunicator = Communicator<C> && requires(C& communicator) {
  { communicator.flight_record() } -> std::same_as<FlightRecord&>;
};

/// Optional refinement: a communicator that knows which ranks are near each other, such as those of a node.
/// near_ranks() has an entry for each rank, the first rank that is near it or the rank itself: ranks are near each
/// other if their entries are equal. The list is the same on all ranks, and neither changes nor moves as long as the
/// communicator lives.
template <class C>
concept TopologyAwareCommunicator = Communicator<C> && requires(C const& observed) {
  { observed.near_ranks() } -> std::same_as<std::span<Rank const>>;
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

/// Type of the pending exchanges of communicator C.
template <class C>
using TransferOf = decltype(detail::start_shift(std::declval<C&>(), Channel{}, 1, OutgoingBytes{}, IncomingBytes{},
                                                std::declval<QueueOf<typename C::memory_space>>()));

/// The rank `hop` places after `rank` in a ring of `size` ranks, or before it for a negative hop.
constexpr Rank ring_neighbour(Rank rank, int hop, int size) { return detail::rank_at(rank + hop, size); }

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
/// The reader's handle of a window. Satisfied by a movable T where
///  1. wait() returns when the owner has shared its bytes; it throws CommunicationError when the owner is lost or late,
///     at the communicator's deadline at the latest;
///  2. after wait(), runs() are the owner's bytes, in this rank's address space. They do not change, and stay readable
///     even if the owner fails or ends, until the window is released;
///  3. release() declares that this rank has read them; so does destroying the window after wait();
///  4. destroying it without wait() (an exception unwinds the stack) makes the peers' waits fail;
///  5. in a memory space whose queue is not empty, wait and release take the queue: wait(queue) returns when the owner
///     has opened the window, so that runs() are known, and work that is put on the queue from then on begins when the
///     bytes are shared. release(queue) declares that the work now on the queue is the last to read them; so does
///     destroying the window after wait(queue), for the work that is then on that queue.
template <class T>
concept SharedWindow = std::movable<T> && requires(T window, T const& observed) {
  { window.wait() } -> std::same_as<void>;
  { observed.runs() } -> std::same_as<WindowRuns>;
  { window.release() }
  noexcept;
};

namespace detail {

/// A window in memory space S, whose wait and release take the queue unless that is empty.
template <class T, class S>
concept SharedWindowIn = (works_at_once<S> && SharedWindow<T>) ||
                         (!works_at_once<S> && std::movable<T> &&
                          requires(T window, T const& observed, QueueOf<S> queue) {
                            { window.wait(queue) } -> std::same_as<void>;
                            { observed.runs() } -> std::same_as<WindowRuns>;
                            window.release(queue);
                          });

/// A communicator that opens windows on bytes in memory space S.
template <class C, class S>
concept OpensWindowsIn = (works_at_once<S> &&
                          requires(C & communicator, Channel channel, int hop, OutgoingBytes out,
                                   std::byte const* first) {
                            { communicator.open_window(channel, hop, out) } -> SharedWindow;
                            communicator.reclaim(first);
                          }) ||
                         (!works_at_once<S> && requires(C & communicator, Channel channel, int hop, OutgoingBytes out,
                                                        std::byte const* first, QueueOf<S> queue) {
                           { communicator.open_window(channel, hop, out, queue) } -> SharedWindowIn<S>;
                           communicator.reclaim(first, queue);
                         });

/// Opens a window on bytes that the work on the queue writes.
template <class C, class Queue>
auto open_window(C& communicator, Channel channel, int hop, OutgoingBytes out, Queue const& queue) {
  if constexpr (works_at_once<typename C::memory_space>)
    return communicator.open_window(channel, hop, out);
  else
    return communicator.open_window(channel, hop, out, queue);
}

/// Work that is put on the queue from now on does not read the window.
template <class T, class Queue>
void release_window(T& window, Queue const& queue) {
  if constexpr (std::is_empty_v<Queue>)
    window.release();
  else
    window.release(queue);
}

/// Work that is put on the queue from now on begins when no rank reads the buffer at `first` through a window.
template <class C, class Queue>
void reclaim_buffer(C& communicator, std::byte const* first, Queue const& queue) {
  if constexpr (works_at_once<typename C::memory_space>)
    communicator.reclaim(first);
  else
    communicator.reclaim(first, queue);
}

}  // namespace detail

/// A communicator with zero-copy exchange. Satisfied by C where
///  1. shares_memory() says whether the ranks of this ring can read each other's memory; the answer is the same on all
///     ranks and never changes; if it is false, nothing below is called;
///  2. allocate(bytes) returns a movable Buffer with data() and size(), aligned to 64 bytes, contents unspecified. It
///     may be destroyed at any time, before or after the communicator: shared bytes are kept for their readers;
///  3. open_window(channel, hop, out) is called by all ranks like start_shift, in an order of its own per channel. It
///     shares the runs `out` with rank() + hop and returns the window on the runs that rank() - hop shares with this
///     rank. `out` has at most max_window_runs runs; those that are not empty lie within one Buffer: else it throws
///     CommunicationError, which names the number of runs ("9 runs"), or the run that does not ("run 0 of a window").
///     The bytes must not be written before they are reclaimed. It does not block unless the reader has not waited for
///     max_open_windows windows on this channel: then it may wait for the reader, and throw CommunicationError if that
///     is lost or late;
///  4. reclaim(first) returns when all windows on the Buffer whose data() is `first` have been released. It throws
///     CommunicationError if a reader is lost or late; the bytes must then not be written any more;
///  5. in a memory space whose queue is not empty, open_window and reclaim take the queue as their last argument: a
///     window shares the bytes that the work now on the queue leaves, and work that is put on the queue after
///     reclaim(first, queue) begins when all windows on the Buffer have been released. A lost or late reader may then
///     be reported by finish(queue).
template <class C>
concept ZeroCopyCommunicator = Communicator<C> && detail::OpensWindowsIn<C, typename C::memory_space> &&
    requires(C& communicator, C const& observed, typename C::Buffer const& buffer, Index bytes) {
  { observed.shares_memory() } -> std::same_as<bool>;
  { communicator.allocate(bytes) } -> std::same_as<typename C::Buffer>;
  { buffer.data() } -> std::same_as<std::byte*>;
  { buffer.size() } -> std::same_as<Index>;
};

/// Type of the windows of communicator C.
template <class C>
using WindowOf = decltype(detail::open_window(std::declval<C&>(), Channel{}, 1, OutgoingBytes{},
                                              std::declval<QueueOf<typename C::memory_space>>()));

namespace detail {

/// True if the ranks of this ring can read each other's memory; false for a communicator without zero-copy exchange.
template <Communicator C>
bool shares_memory(C const& communicator) {
  if constexpr (ZeroCopyCommunicator<C>)
    return communicator.shares_memory();
  else
    return false;
}

/// Length of a list with an entry for each channel to each peer, and the index of one of them.
constexpr std::size_t num_streams(int ranks) { return num_channels * static_cast<std::size_t>(ranks); }
constexpr std::size_t stream_index(Channel channel, Rank peer) {
  return num_streams(peer) + static_cast<std::size_t>(channel);
}

/// The buffer that all runs of a window lie in; null if all are empty. find(run): the buffer that holds a run, or null.
/// Throws CommunicationError if there are too many runs or they do not lie within one buffer.
template <class Find>
auto buffer_of_window(OutgoingBytes out, Find find) {
  check<CommunicationError>(out.size() <= max_window_runs, "a window of ", out.size(), " runs; at most ",
                            max_window_runs, " are accepted");
  decltype(find(out[0])) buffer{};
  for (std::size_t p = 0; p < out.size(); ++p) {
    if (out[p].empty()) continue;
    auto found = find(out[p]);
    check<CommunicationError>(found && (!buffer || found == buffer), "run ", p,
                              " of a window does not lie within one buffer of the ring");
    buffer = std::move(found);
  }
  return buffer;
}

}  // namespace detail
}  // namespace annulus
