#pragma once
// One rank's end of a ring over MPI: what is under way, who has left, and how the ring is closed when something fails.
//
// Closing. MPI reads and writes the caller's bytes until a request completes, and cannot be told to take a send back.
// So a rank that closes its ring
//  1. cancels its receives; those that a message has already met complete, for both sides of them are at hand;
//  2. once it has none left, tells all peers that it is quiet: whatever they still send it is never met, hence never
//     read;
//  3. gives the caller's bytes back when its own sends have completed or go to quiet ranks.
// Quiet does not wait for sends, so that ranks cannot wait for each other in a circle. A rank that stays away for
// longer than the timeout counts as lost, and messages that it has not met by then are left to MPI: if it comes back,
// it learns that the ring is closed before it posts anything, and fails its waits whatever has arrived.

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/mpi/call.hpp"
#include "annulus/comm/mpi/exchange.hpp"
#include "annulus/comm/mpi/notices.hpp"
#include "annulus/comm/mpi/options.hpp"
#include "annulus/comm/mpi/shared_memory.hpp"
#include "annulus/comm/mpi/tags.hpp"

namespace annulus::detail {

/// Time spent polling. Yields, because ranks may be more than cores.
class MpiPatience {
 public:
  void pause() {
    if (++polls_ > 16) std::this_thread::yield();
  }
  bool exceeds(std::chrono::milliseconds limit) const {
    // In milliseconds: a limit of "for ever" does not fit the clock's own unit.
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start_) >= limit;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int polls_ = 0;
};

class MpiEndpoint {
 public:
  /// Takes over `own`, a communicator that no one else uses.
  MpiEndpoint(MPI_Comm own, MpiRingOptions const& options)
      : communicator_(own),
        options_(options),
        rank_(mpi_rank(own)),
        size_(mpi_size(own)),
        largest_tag_(largest_mpi_tag()),
        notices_(own),
        departed_(static_cast<std::size_t>(size_), false) {
    check_mpi(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler", rank_);
  }

  MpiEndpoint(MpiEndpoint const&) = delete;
  MpiEndpoint& operator=(MpiEndpoint const&) = delete;

  Rank rank() const { return rank_; }
  int size() const { return size_; }

  std::shared_ptr<MpiExchange> start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    Rank const to = ring_neighbour(rank_, hop, size_), from = ring_neighbour(rank_, -hop, size_);
    return start(name_of(channel), hop, MpiTags::of(channel, largest_tag_), [&](MpiExchange& exchange) {
      exchange.receive(in, from);
      exchange.send(out, to);
    });
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    std::size_t const bytes = mine.size(), ranks = static_cast<std::size_t>(size_);
    check<CommunicationError>(all.size() == ranks * bytes, "all_gather of ", bytes, " bytes a rank over ", size_,
                              " ranks needs ", ranks * bytes, " bytes of space, got ", all.size());
    std::span<std::byte> records;
    auto const exchange = start("all_gather", 0, MpiTags::of_gatherings(largest_tag_), [&](MpiExchange& gathering) {
      records = gathering.own_bytes(ranks * bytes);
      // A rank that has all records may give up over what it read there; the others must come to read it too.
      gathering.outlive_closing();
      auto const record = [&](Rank rank) { return records.subspan(static_cast<std::size_t>(rank) * bytes, bytes); };
      std::copy(mine.begin(), mine.end(), record(rank_).begin());
      std::span<std::byte const> const own = record(rank_);
      for (Rank peer = 0; peer < size_; ++peer) {
        std::span<std::byte> const theirs = record(peer);
        if (peer != rank_) gathering.receive({&theirs, 1}, peer);
      }
      for (Rank peer = 0; peer < size_; ++peer)
        if (peer != rank_) gathering.send({&own, 1}, peer);
    });
    complete(exchange);
    std::copy(records.begin(), records.end(), all.begin());
  }

  /// From now on the ranks lend each other what lies in `memory`.
  void share(std::shared_ptr<MpiSharedMemory> memory) { memory_ = std::move(memory); }
  /// Null where the ranks do not share memory.
  std::shared_ptr<MpiSharedMemory> const& memory() const { return memory_; }

  LoanNumber start_loan(Channel channel, int hop, OutgoingBytes out) {
    if (!closed_) listen();
    require_open();
    memory_->lend(channel, ring_neighbour(rank_, hop, size_), out);
    ++loans_under_way_;
    return memory_->next_loan_from(ring_neighbour(rank_, -hop, size_), channel);
  }

  /// Returns when the loan can be read; throws when the ring is closed, now or before.
  TakenLoan complete(LoanNumber const& loan) {
    --loans_under_way_;
    std::optional<TakenLoan> taken;
    auto const peer = [&]() -> std::optional<Rank> {
      // What was lent and cannot be reached is gone with its lender, who says why or is late.
      if (memory_->is_lent(loan)) taken = memory_->take(loan);
      return taken ? std::nullopt : std::optional(loan.lender);
    };
    await(peer, [&] { return message_of(name_of(loan.channel), " loan"); });
    return std::move(*taken);
  }

  /// The loan is given up without complete().
  void drop(LoanNumber const&) noexcept {
    --loans_under_way_;
    abandon("it dropped a loan under way");
  }

  void reclaim(std::byte const* first) {
    if (!closed_) listen();
    require_open();
    await([&] { return memory_->reader_of(first); }, [] { return std::string("rows it was lent"); });
  }

  /// Returns when all messages of the exchange have completed; throws when the ring is closed, now or before.
  void complete(std::shared_ptr<MpiExchange> const& exchange) {
    try {
      await(*exchange);
      forget(exchange);
    } catch (...) {
      drop(exchange);
      throw;
    }
  }

  /// Lets MPI work for a moment, if it has not for a while. What is found wrong, complete() throws.
  void progress(MpiExchange& exchange) noexcept {
    // A message has a few pieces to pass on in a millisecond; asking more often costs compute and brings nothing.
    constexpr std::chrono::microseconds pause(200);
    auto const now = std::chrono::steady_clock::now();
    if (closed_ || exchange.done() || now < last_progress_ + pause || !mpi_is_running()) return;
    last_progress_ = now;
    try {
      exchange.progress();
    } catch (std::exception const&) {
      // No memory for the words of a complaint: the peers' time limits remain.
    }
  }

  /// The exchange is given up without complete().
  void drop(std::shared_ptr<MpiExchange> const& exchange) noexcept {
    if (!mpi_is_running()) return;
    abandon("it dropped a transfer under way");
    release(exchange);
  }

  void abandon(std::string const& reason) noexcept {
    if (closed_ || !mpi_is_running()) return;
    try {
      close(CommunicationError(message_of("rank ", rank_, " left the ring: ", reason), rank_,
                               CommunicationError::unknown, rank_),
            reason);
    } catch (std::exception const&) {
      // No memory for the words: the peers' time limits remain.
    }
  }

  /// Throws what closed the ring, if it is closed.
  void require_open() const {
    if (closed_) throw CommunicationError(*closed_);
  }

  /// The ring object is gone.
  void leave() noexcept {
    if (memory_) memory_->keep_no_spare();
    if (!mpi_is_running()) return;
    if (!closed_ && (!under_way_.empty() || loans_under_way_ > 0)) abandon("it dropped its ring with shifts under way");
    // A closed ring waits for no one: borrowers keep what they have mapped.
    if (closed_) return memory_.reset();
    try {
      left_ = true;
      notices_.tell_all(MpiNotice::left, {});
    } catch (std::exception const&) {
      left_ = false;
    }
  }

  /// Frees the communicator once no message for it can be on its way; a closed ring keeps it until MPI ends, because
  /// MPI would take a late message for one of the next communicator. Returns whether it is freed.
  bool try_to_free() {
    if (!left_ || !notices_.all_sent()) return false;
    listen();
    if (closed_) memory_.reset();
    for (Rank peer = 0; peer < size_; ++peer)
      if (peer != rank_ && !departed(peer)) return false;
    return !closed_ && MPI_Comm_free(&communicator_) == MPI_SUCCESS;
  }

 private:
  static std::string_view name_of(Channel channel) {
    return channel == Channel::prefetched ? "prefetched" : channel == Channel::carried ? "carried" : "reduction";
  }

  bool departed(Rank peer) const { return peer >= 0 && departed_[static_cast<std::size_t>(peer)]; }

  template <class Post>
  std::shared_ptr<MpiExchange> start(std::string_view what, int hop, MpiTags tags, Post post) {
    if (!closed_) listen();
    require_open();
    auto exchange = std::make_shared<MpiExchange>(communicator_, rank_, what, hop, tags, options_.max_message_bytes);
    under_way_.push_back(exchange);
    try {
      post(*exchange);
    } catch (...) {
      drop(exchange);
      throw;
    }
    return exchange;
  }

  /// Hears of ranks that gave up, fell quiet or left.
  void listen() {
    notices_.listen([&](Rank peer, MpiNotice kind, std::string const& text) {
      if (kind == MpiNotice::abandoned) {
        if (!closed_)
          close(CommunicationError(message_of("rank ", peer, " left the ring: ", text), rank_,
                                   CommunicationError::unknown, peer),
                std::nullopt);
      } else {
        departed_[static_cast<std::size_t>(peer)] = true;
      }
    });
  }

  void await(MpiExchange& exchange) {
    MpiPatience patience;
    std::optional<MpiPatience> farewell;
    for (;; patience.pause()) {
      exchange.progress();
      listen();
      bool const sound = exchange.complaint().empty();
      if (!closed_ && !sound) fail(exchange.complaint(), exchange.culprit());
      if (closed_ && !(sound && exchange.outlives_closing())) throw CommunicationError(*closed_);
      if (exchange.done()) return;
      lose_patience(patience, farewell, exchange.awaited(), [&] { return exchange.description(); });
    }
  }

  /// Waits for what a peer does in shared memory. awaited(): the peer, or none when it is done.
  template <class Awaited, class Description>
  void await(Awaited awaited, Description description) {
    MpiPatience patience;
    std::optional<MpiPatience> farewell;
    for (;; patience.pause()) {
      // Also lets the messages of other exchanges move on.
      listen();
      require_open();
      std::optional<Rank> const peer = awaited();
      if (!peer) return;
      lose_patience(patience, farewell, *peer, description);
    }
  }

  /// Throws if `peer`, which is waited for, will not come any more.
  template <class Description>
  void lose_patience(MpiPatience const& patience, std::optional<MpiPatience>& farewell, Rank peer,
                     Description description) {
    // What a peer sent before it left, or before the ring was closed, is on its way for a moment at most.
    constexpr std::chrono::milliseconds grace(300);
    if (!farewell && (closed_ || departed(peer))) farewell.emplace();
    bool const given_up = farewell && farewell->exceeds(std::min(options_.timeout, grace));
    if (closed_ && (given_up || departed(peer))) throw CommunicationError(*closed_);
    if (given_up)
      fail(message_of("rank ", rank_, " waits for rank ", peer, ", which has returned (", description(), ")"), peer);
    if (patience.exceeds(options_.timeout))
      fail(message_of("rank ", rank_, " waited ", options_.timeout.count(), " ms for rank ", peer, " (", description(),
                      "): the peer is late or lost"),
           peer);
  }

  /// This rank has found a failure.
  [[noreturn]] void fail(std::string const& message, Rank culprit) {
    close(CommunicationError(message, rank_, CommunicationError::unknown, culprit), message);
    throw CommunicationError(*closed_);
  }

  /// `news` is what the peers are told, if they do not know yet.
  void close(CommunicationError error, std::optional<std::string_view> news) {
    closed_ = std::move(error);
    for (auto const& exchange : under_way_)
      if (!exchange->outlives_closing()) exchange->cancel_receives();
    if (news) notices_.tell_all(MpiNotice::abandoned, *news);
    fall_quiet();
  }

  void fall_quiet() {
    if (quiet_) return;
    for (auto const* exchanges : {&under_way_, &left_to_mpi_})
      for (auto const& exchange : *exchanges) {
        exchange->progress();
        if (!exchange->receives_done()) return;
      }
    quiet_ = true;
    notices_.tell_all(MpiNotice::quiet, {});
  }

  /// After it no one reads or writes the caller's bytes, a peer that stays away for longer than the timeout excepted.
  void release(std::shared_ptr<MpiExchange> const& exchange) noexcept {
    try {
      exchange->cancel_receives();
      for (MpiPatience patience; !patience.exceeds(options_.timeout); patience.pause()) {
        exchange->progress();
        fall_quiet();
        listen();
        if (exchange->done()) break;
        if (exchange->receives_done() && exchange->waits_only_for([&](Rank peer) { return departed(peer); })) break;
      }
      if (!exchange->done()) left_to_mpi_.push_back(exchange);
      forget(exchange);
    } catch (std::exception const&) {
      // The exchange stays in under_way_, where MPI finds its own bytes.
    }
  }

  void forget(std::shared_ptr<MpiExchange> const& exchange) { std::erase(under_way_, exchange); }

  MPI_Comm communicator_;
  MpiRingOptions options_;
  Rank rank_;
  int size_;
  int largest_tag_;
  MpiNotices notices_;
  std::vector<bool> departed_;
  std::vector<std::shared_ptr<MpiExchange>> under_way_, left_to_mpi_;
  std::shared_ptr<MpiSharedMemory> memory_;
  int loans_under_way_ = 0;
  std::chrono::steady_clock::time_point last_progress_{};
  std::optional<CommunicationError> closed_;
  bool quiet_ = false, left_ = false;
};

}  // namespace annulus::detail
