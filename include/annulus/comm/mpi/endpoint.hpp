#pragma once
// One rank's end of a ring over MPI: pending exchanges, which peers have left, and how the ring is closed on failure.
//
// Closing. MPI reads and writes the caller's bytes until a request completes, and cannot cancel a send. So a rank that
// closes its ring
//  1. cancels its receives; those already matched by a message complete, because both sides of it have been posted;
//  2. once it has no receive left, tells all peers that it is quiet: what they still send to it is never matched, hence
//     never read;
//  3. returns the caller's bytes when its own sends have completed or go to quiet ranks.
// Becoming quiet does not wait for sends, so ranks cannot wait for each other in a cycle. A rank that does not call its
// ring for longer than the timeout counts as lost, and messages that it has not matched by then are left to MPI: if it
// comes back, it learns that the ring is closed before it posts anything, and its waits fail whatever has arrived.
//
// Deadlines. A rank whose wait exceeds its timeout asks all ranks for their statuses, closes the ring with a report of
// which rank waits for which, and blames the rank at the end of the chain of waits.

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/comm/mpi/construction.hpp"
#include "annulus/comm/mpi/exchange.hpp"
#include "annulus/comm/mpi/notices.hpp"
#include "annulus/comm/mpi/shared_memory.hpp"
#include "annulus/comm/polling_timer.hpp"
#include "annulus/comm/ring_failure.hpp"

namespace annulus::detail {

/// Owns the communicator of a ring and all pending exchanges of this rank.
///
/// Concurrency. There is no lock, and MPI need not support threads: the thread that constructed the ring calls all
/// members, and is the only one to read or write the data members.
///  * progress: called by that thread in the midst of a backend's work, when Step::progress is called.
///  * leave: called when the ring is destroyed; afterwards only try_to_free is called.
///  * try_to_free: called under the lock of MpiRetired, by a thread that constructs or destroys a ring.
/// Other processes read and write only the buffers and counters that MpiSharedMemory maps.
class MpiEndpoint {
 public:
  /// Takes ownership of `own`, a communicator that nothing else uses.
  explicit MpiEndpoint(MPI_Comm own)
      : communicator_(own),
        rank_(mpi_rank(own)),
        size_(mpi_size(own)),
        largest_tag_(largest_mpi_tag()),
        notices_(own),
        peers_(static_cast<std::size_t>(size_)) {
    check_mpi(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", rank_);
  }

  using Shift = std::shared_ptr<MpiExchange>;
  using Window = MpiWindow;

  MpiEndpoint(MpiEndpoint const&) = delete;
  MpiEndpoint& operator=(MpiEndpoint const&) = delete;

  /// Replaces the default options, once those of all ranks have been compared.
  void use(MpiRingOptions const& options) { options_ = options; }

  Rank rank() const { return rank_; }
  int size() const { return size_; }
  FlightRecord& flight_record() { return record_; }

  /// Starts a shift; the bytes must stay until complete() or drop().
  Shift start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    Rank const to = ring_neighbour(rank_, hop, size_), from = ring_neighbour(rank_, -hop, size_);
    return start(annulus::name_of(channel), hop, record_.position(), MpiTags::of(channel, largest_tag_),
                 [&](MpiExchange& exchange) {
                   exchange.receive(in, from);
                   exchange.send(out, to);
                 });
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    std::span<std::byte> records;
    auto const exchange = start("all-gather", 0, {}, MpiTags::of_all_gathers(largest_tag_), [&](MpiExchange& gather) {
      records = gather.own_bytes(all.size());
      // A rank may close the ring because of the records that it has read; the others must receive them all the same.
      gather.outlive_closing();
      std::span<std::byte const> const own = record_of(rank_, records, mine.size());
      std::copy(mine.begin(), mine.end(), record_of(rank_, records, mine.size()).begin());
      for (Rank peer = 0; peer < size_; ++peer) {
        std::span<std::byte> const theirs = record_of(peer, records, mine.size());
        if (peer != rank_) gather.receive({&theirs, 1}, peer);
      }
      for (Rank peer = 0; peer < size_; ++peer)
        if (peer != rank_) gather.send({&own, 1}, peer);
    });
    complete(exchange);
    std::copy(records.begin(), records.end(), all.begin());
  }

  /// Enables zero-copy exchange of buffers of `memory`.
  void share(std::shared_ptr<MpiSharedMemory> memory) { memory_ = std::move(memory); }
  bool shares_memory() const { return memory_ != nullptr; }

  /// Sets for each rank the first rank that is near it.
  void place(std::vector<Rank> near_ranks) { near_ranks_ = std::move(near_ranks); }
  std::span<Rank const> near_ranks() const { return near_ranks_; }

  std::shared_ptr<std::byte> allocate(Index bytes) {
    return {memory_->allocate(bytes), [memory = memory_](std::byte* first) { memory->free(first); }};
  }

  Window open_window(Channel channel, int hop, OutgoingBytes out) {
    require_open();
    process_notices();
    require_open();
    Rank const reader = ring_neighbour(rank_, hop, size_);
    auto const full = [&] { return memory_->is_full(channel, reader) ? std::optional(reader) : std::nullopt; };
    if (full()) await_memory(awaited_reader(channel), full);
    memory_->share(channel, reader, out, record_.position());
    ++pending_windows_;
    return memory_->next_window_from(ring_neighbour(rank_, -hop, size_), channel, record_.position());
  }

  /// Returns when the window can be read.
  void complete(Window& window) {
    --pending_windows_;
    std::optional<CallPosition> position;
    await_memory(awaited_window(window.channel), [&] {
      // Memory that cannot be mapped is gone with its owner; the owner's notice or the deadline ends the wait.
      position = memory_->take(window);
      return position ? std::nullopt : std::optional(window.owner);
    });
    if (*position == window.position) return;
    window.reading = {};
    auto const complaint = wrong_position(window.position, *position);
    fail(RingFailure::received(rank_, complaint.view(), window.owner, window.owner));
  }

  void drop(Window const&) noexcept {
    --pending_windows_;
    abandon("it dropped a pending window");
  }

  /// Returns when all windows on the buffer at `first` have been released.
  void reclaim(std::byte const* first) {
    require_open();
    await_memory(awaited_release(), [&] { return memory_->reader_of(first); });
  }

  /// Returns when all messages of the exchange have completed.
  void complete(Shift const& exchange) {
    try {
      await(PollingTimer::Of::messages, exchange->description(), [&]() -> std::optional<Rank> {
        exchange->progress();
        process_notices();
        bool const sound = !exchange->failure();
        if (!failure_ && !sound) fail(*exchange->failure());
        if (failure_ && !(sound && exchange->outlives_closing())) failure_->raise(rank_);
        if (exchange->done()) return std::nullopt;
        return exchange->awaited();
      });
      forget(exchange);
    } catch (...) {
      drop(exchange);
      throw;
    }
  }

  /// Lets MPI make progress, if the last progress() was a while ago. An error that it finds is thrown by complete().
  void progress(Shift const& exchange) noexcept {
    // MPI passes on a few pieces of a message in a millisecond; calling it more often costs compute and gains nothing.
    constexpr std::chrono::microseconds pause(200);
    auto const now = std::chrono::steady_clock::now();
    if (failure_ || exchange->done() || now < last_progress_ + pause || !mpi_is_running()) return;
    last_progress_ = now;
    try {
      exchange->progress();
      process_notices();
    } catch (std::exception const&) {
      // Later waits find the same error.
    }
  }

  /// Gives up an exchange without complete(): abandons the ring, and returns when the caller's bytes are free.
  void drop(Shift const& exchange) noexcept {
    if (!mpi_is_running()) return;
    abandon("it dropped a pending transfer");
    release(exchange);
  }

  /// Closes the ring on all ranks, whose errors blame `culprit`.
  void abandon(std::string_view reason, Rank culprit) noexcept {
    if (failure_ || !mpi_is_running()) return;
    close(RingFailure::abandoned(rank_, reason, culprit));
  }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank_); }

  /// Throws the failure that closed the ring, if it is closed, and CommunicationError after MPI_Finalize.
  void require_open() const {
    if (failure_) failure_->raise(rank_);
    check<CommunicationError>(mpi_is_running(), "MpiRing must not be used after MPI_Finalize");
  }

  /// Tells all peers that this rank will send nothing more. Called when the ring object is destroyed.
  void leave() noexcept {
    if (memory_) memory_->keep_no_spare();
    if (!mpi_is_running()) return;
    if (!failure_ && (!pending_.empty() || pending_windows_ > 0)) abandon("it dropped its ring with pending exchanges");
    // In a closed ring the owner need not keep its memory: readers keep their own mappings.
    if (failure_) memory_.reset();
    notices_.tell_each([&](Rank peer) {
      MpiNotice notice{.kind = MpiNotice::left};
      notice.messages = of(peer).sent;
      notice.all_sends_done = !reads_callers_bytes_for(peer);
      return notice;
    });
    left_ = true;
  }

  /// Frees the communicator once none of its messages can be in flight: MPI would match a late one in the next
  /// communicator. Returns true if it is freed.
  bool try_to_free() {
    if (!left_) return false;
    process_notices();
    if (failure_) memory_.reset();
    std::erase_if(left_to_mpi_, [](auto const& exchange) {
      exchange->progress();
      return exchange->done();
    });
    bool all_received = true;
    for (Rank rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      MpiPeer const& peer = of(rank);
      // Messages that a peer's MPI would still read from bytes that its caller has taken back are not received.
      if (peer.left && peer.sends_done) receive_unclaimed(rank);
      all_received = all_received && peer.left && peer.messages == peer.received;
    }
    return all_received && pending_.empty() && left_to_mpi_.empty() && notices_.all_sent() &&
           MPI_Comm_free(&communicator_) == MPI_SUCCESS;
  }

 private:
  /// How long a closed ring waits at least for peers that do not call it, before it takes its bytes back.
  static constexpr std::chrono::milliseconds release_grace{400};
  /// How long bytes stay after their receivers have departed: MPI may send them eagerly, in fragments that it copies
  /// while the receivers make room.
  static constexpr std::chrono::milliseconds eager_grace{50};

  static std::span<std::byte> record_of(Rank rank, std::span<std::byte> records, std::size_t size) {
    return records.subspan(static_cast<std::size_t>(rank) * size, size);
  }

  MpiPeer& of(Rank peer) { return peers_[static_cast<std::size_t>(peer)]; }
  bool departed(Rank peer) { return peer >= 0 && of(peer).departed; }

  /// Receives and drops messages of a peer that has left, which have arrived and which no exchange waits for any more.
  /// Does not block.
  void receive_unclaimed(Rank rank) {
    for (MpiPeer& peer = of(rank); peer.received < peer.messages; ++peer.received) {
      int arrived = 0, length = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      int const probed = MPI_Improbe(rank, MPI_ANY_TAG, communicator_, &arrived, &message, &status);
      if (probed != MPI_SUCCESS || arrived == 0) return;
      MPI_Get_count(&status, MPI_BYTE, &length);
      std::vector<std::byte> unclaimed(static_cast<std::size_t>(length));
      check_mpi(MPI_Mrecv(unclaimed.data(), length, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv", rank_, rank);
    }
  }

  /// Starts the exchange whose messages post(exchange) posts.
  template <class Post>
  Shift start(std::string_view what, int hop, CallPosition const& position, MpiTags tags, Post post) {
    require_open();
    process_notices();
    require_open();
    auto exchange = std::make_shared<MpiExchange>(communicator_, rank_, what, hop, position, tags,
                                                  options_.max_message_bytes, peers_);
    pending_.push_back(exchange);
    try {
      post(*exchange);
    } catch (...) {
      drop(exchange);
      throw;
    }
    return exchange;
  }

  /// Processes the notices of peers that gave up, are late, became quiet or left.
  void process_notices() {
    // Peers may have given up a rank that was away, and have taken back the bytes that it now receives. Their notices
    // have arrived, but a probe of MPICH finds only part of what has.
    constexpr int all_that_arrived = 1000;
    // On a busy machine a probe of Open MPI that finds nothing yields the core for milliseconds.
    constexpr std::chrono::milliseconds longest(50);
    auto const now = PollingTimer::Clock::now();
    int probes = now - last_probe_ > release_grace ? all_that_arrived : 1;
    last_probe_ = now;
    do {
      notices_.receive([&](Rank peer, MpiNotice const& notice) {
        if (notice.kind == MpiNotice::abandoned && !failure_) close(notice.failure);
        if (notice.kind == MpiNotice::late) notices_.tell_all({.kind = MpiNotice::answer, .status = own_status()});
        of(peer).learn_from(notice);
      });
    } while (--probes > 0 && !PollingTimer::exceeds(now, longest));
  }

  RankStatus own_status() const { return RankStatus::of(waits_for_, waits_what_.view(), record_); }

  /// Timers of one wait: since it began, since its peer left, and since all statuses were asked for.
  struct Deadline {
    PollingTimer timer;
    std::optional<PollingTimer::Clock::time_point> peer_left{}, statuses_asked{};
  };

  /// Polls until awaited() returns none; else it returns the peer that this rank waits for.
  template <class AwaitedPeer>
  void await(PollingTimer::Of medium, Awaited const& what, AwaitedPeer awaited) {
    Deadline deadline{PollingTimer(medium)};
    wait_begin_ = deadline.timer.start();
    waits_what_ = what;
    for (; std::optional<Rank> const peer = awaited(); deadline.timer.pause()) {
      waits_for_ = *peer;
      check_deadline(deadline);
    }
    record_.advance();
    waits_for_ = CommunicationError::unknown;
    wait_begin_.reset();
  }

  /// The same for a change in shared memory.
  template <class AwaitedPeer>
  void await_memory(Awaited const& what, AwaitedPeer awaited) {
    await(PollingTimer::Of::shared_memory, what, [&] {
      // Also lets the messages of other exchanges advance.
      process_notices();
      require_open();
      return awaited();
    });
  }

  /// Throws if the awaited peer has left, the ring is closed, or the timeout has passed and the peers have answered.
  void check_deadline(Deadline& deadline) {
    // Messages that a peer sent before it left, or before the ring was closed, arrive within this time.
    constexpr std::chrono::milliseconds grace(300);
    Rank const peer = waits_for_;
    if (!deadline.peer_left && (failure_ || departed(peer))) deadline.peer_left = PollingTimer::Clock::now();
    bool const given_up =
        deadline.peer_left && PollingTimer::exceeds(*deadline.peer_left, std::min(options_.timeout, grace));
    if (failure_ && (given_up || departed(peer))) failure_->raise(rank_);
    if (given_up) fail(RingFailure::returned(rank_, peer, waits_what_.view()));
    // A known failure stands: the peers that it has ended would be taken for returned in a report.
    if (failure_ || !deadline.timer.exceeds(options_.timeout)) return;
    if (!deadline.statuses_asked) {
      deadline.statuses_asked = PollingTimer::Clock::now();
      notices_.tell_all({.kind = MpiNotice::late, .status = own_status()});
    }
    bool const all_answered = std::all_of(
        peers_.begin(), peers_.end(), [&](MpiPeer const& one) { return one.status || one.left || &one == &of(rank_); });
    if (all_answered || PollingTimer::exceeds(*deadline.statuses_asked, grace)) fail(report());
  }

  /// The report of a timeout: which rank waits for which, as far as peers have answered.
  RingFailure report() {
    std::vector<RankStatus> statuses;
    RankStatus const returned{.kind = RankStatus::Kind::returned};
    for (MpiPeer const& peer : peers_) statuses.push_back(peer.left ? returned : peer.status.value_or(RankStatus{}));
    statuses[static_cast<std::size_t>(rank_)] = own_status();
    return hang_report(statuses, rank_, options_.timeout);
  }

  /// Closes the ring because of a failure that this rank has found, and throws it.
  [[noreturn]] void fail(RingFailure const& failure) {
    close(failure);
    failure_->raise(rank_);
  }

  /// Closes the ring. Passes on also what a peer has told, so that all ranks know the failure before they learn that
  /// this rank is quiet or has left.
  void close(RingFailure const& failure) noexcept {
    failure_ = failure;
    closed_at_ = PollingTimer::Clock::now();
    for (auto const& exchange : pending_)
      if (!exchange->outlives_closing()) exchange->cancel_receives();
    notices_.tell_all({.kind = MpiNotice::abandoned, .failure = failure});
    become_quiet();
  }

  /// Tells all peers that this rank is quiet, if it has no receive posted any more.
  void become_quiet() noexcept {
    for (auto const* exchanges : {&pending_, &left_to_mpi_})
      for (auto const& exchange : *exchanges) {
        exchange->progress();
        if (!exchange->receives_done()) return;
      }
    notices_.tell_all({.kind = MpiNotice::quiet});
  }

  /// True if a closed ring must no longer wait for MPI: the failed wait and its clean-up take no longer than the
  /// timeout and a grace period.
  bool release_is_due() const {
    return PollingTimer::exceeds(wait_begin_.value_or(closed_at_), options_.timeout) &&
           PollingTimer::exceeds(closed_at_, release_grace);
  }

  /// Returns when no rank reads or writes the caller's bytes, except peers that do not call their ring for longer than
  /// the timeout.
  void release(Shift const& exchange) noexcept {
    try {
      exchange->cancel_receives();
      // No message uses the caller's bytes.
      if (exchange->owns_bytes()) {
        left_to_mpi_.push_back(exchange);
        return forget(exchange);
      }
      std::optional<PollingTimer::Clock::time_point> all_departed;
      for (PollingTimer timer(PollingTimer::Of::messages); !release_is_due(); timer.pause()) {
        exchange->progress();
        become_quiet();
        process_notices();
        if (exchange->done()) break;
        if (!exchange->receives_done() || !exchange->waits_only_for([&](Rank peer) { return departed(peer); }))
          continue;
        if (!all_departed) all_departed = PollingTimer::Clock::now();
        if (PollingTimer::exceeds(*all_departed, eager_grace)) break;
      }
      if (!exchange->done()) left_to_mpi_.push_back(exchange);
      forget(exchange);
    } catch (std::exception const&) {
      // The exchange stays in pending_, so that the addresses that MPI holds stay valid.
    }
  }

  void forget(Shift const& exchange) { std::erase(pending_, exchange); }

  bool reads_callers_bytes_for(Rank peer) const {
    return std::any_of(left_to_mpi_.begin(), left_to_mpi_.end(),
                       [&](auto const& exchange) { return exchange->reads_callers_bytes_for(peer); });
  }

  // Used by the ring's thread alone; after leave() by the one that holds the lock of MpiRetired.
  MPI_Comm communicator_;
  MpiRingOptions options_{};
  Rank rank_;
  int size_, largest_tag_;
  MpiNotices notices_;
  std::vector<MpiPeer> peers_;
  std::vector<Shift> pending_, left_to_mpi_;
  std::shared_ptr<MpiSharedMemory> memory_;
  std::vector<Rank> near_ranks_;
  FlightRecord record_;
  int pending_windows_ = 0;
  Rank waits_for_ = CommunicationError::unknown;  ///< in the current wait
  Awaited waits_what_{};
  PollingTimer::Clock::time_point last_progress_{};
  PollingTimer::Clock::time_point last_probe_ = PollingTimer::Clock::now();  ///< for notices
  std::optional<RingFailure> failure_;                                       ///< the failure that closed the ring
  std::optional<PollingTimer::Clock::time_point> wait_begin_;  ///< of the current wait, or of the one that failed
  PollingTimer::Clock::time_point closed_at_{};
  bool left_ = false;
};

}  // namespace annulus::detail
