#pragma once
// The MPI messages of one shift or one all-gather: their tags, their counts, and the check of those that arrived.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/comm/mpi/notices.hpp"
#include "annulus/comm/ring_failure.hpp"
#include "annulus/core/digest.hpp"

namespace annulus::detail {

/// The largest tag of this MPI library; the standard guarantees at least 32767.
inline int largest_mpi_tag() {
  int* largest = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &found), "MPI_Comm_get_attr");
  return found != 0 ? *largest : 32767;
}

/// The tags of one stream on a ring's private communicator. A stream is a channel or the all-gathers; streams share no
/// tag. The tag of a payload encodes its length: some versions of Open MPI write past the end of a receive that is
/// shorter than what a faulty peer sends, so the two must not match. Lengths share a tag only if they differ by a
/// multiple of an odd number near a quarter of MPI's largest tag.
class MpiTags {
 public:
  static MpiTags of_all_gathers(int largest_tag) { return {0, largest_tag}; }
  static MpiTags of(Channel channel, int largest_tag) { return {1 + static_cast<int>(channel), largest_tag}; }

  /// Tag of the list of runs.
  int list() const { return first_list + stream_; }
  /// Tag of a message of `bytes` bytes.
  int payload(std::size_t bytes) const {
    return first_payload + stream_ + streams * static_cast<int>(bytes % static_cast<std::size_t>(lengths_));
  }

 private:
  static constexpr int streams = 4, first_list = MpiNotice::tag + 1, first_payload = first_list + streams;

  MpiTags(int stream, int largest_tag) : stream_(stream), lengths_(((largest_tag - first_payload) / streams - 1) | 1) {}

  int stream_, lengths_;
};

/// The pending requests of one exchange. MPI holds addresses inside it, so it is not movable and must outlive them.
class MpiExchange {
 public:
  /// `what` names the exchange in errors; static text. `hop`: 0 for an all-gather. `position`: of this rank; messages
  /// of another position do not pair with those of this exchange. `peers`, by rank, must outlive the exchange.
  MpiExchange(MPI_Comm communicator, Rank rank, std::string_view what, int hop, CallPosition const& position,
              MpiTags tags, std::size_t max_message_bytes, std::span<MpiPeer> peers)
      : communicator_(communicator),
        rank_(rank),
        what_(what),
        hop_(hop),
        position_(position),
        tags_(tags),
        limit_(max_message_bytes),
        peers_(peers) {}

  MpiExchange(MpiExchange const&) = delete;
  MpiExchange& operator=(MpiExchange const&) = delete;

  /// Storage that lives as long as the exchange, for messages that are not in the caller's memory. Called once, before
  /// they start.
  std::span<std::byte> own_bytes(std::size_t bytes) {
    own_.resize(bytes);
    return own_;
  }

  /// Starts to receive `runs` from a peer that sends the same runs with send(). Called before all calls of send().
  void receive(IncomingBytes runs, Rank from) {
    auto& list = *lists_.emplace_back(std::make_unique<RunLists>());
    list.own = list_of(runs);
    std::size_t const index = lists_.size() - 1;
    post_receive(std::as_writable_bytes(std::span(list.arriving)), tags_.list(), {from, true, list_run, index, 0});
    for (std::size_t p = 0; p < runs.size(); ++p)
      in_pieces(runs[p], [&](std::span<std::byte> piece) {
        post_receive(piece, tags_.payload(piece.size()), {from, true, p, index, piece.size()});
      });
  }

  /// Starts to send the list of `runs`, then the runs.
  void send(OutgoingBytes runs, Rank to) {
    auto& list = *lists_.emplace_back(std::make_unique<RunLists>());
    list.own = list_of(runs);
    auto const listed = std::min<std::size_t>(list_words, lengths_begin + runs.size());
    post_send(std::as_bytes(std::span(list.own).first(listed)), tags_.list(), to);
    for (auto const& run : runs)
      in_pieces(run, [&](std::span<std::byte const> piece) { post_send(piece, tags_.payload(piece.size()), to); });
  }

  /// Lets the exchange complete even after the ring is closed.
  void outlive_closing() { outlives_closing_ = true; }
  bool outlives_closing() const { return outlives_closing_; }

  /// Lets MPI make progress, and notes which messages have completed.
  void progress() {
    if (done()) return;
    int completed = 0;
    int const code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &completed, indices_.data(),
                                  statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return complain(mpi_error_text(code), awaited());
    if (completed == MPI_UNDEFINED) return;
    for (std::size_t i = 0; i < static_cast<std::size_t>(completed); ++i)
      finish(static_cast<std::size_t>(indices_[i]), statuses_[i],
             code == MPI_SUCCESS ? MPI_SUCCESS : statuses_[i].MPI_ERROR);
  }

  /// Cancels every receive that no message has matched yet; progress() notes the cancellation.
  void cancel_receives() {
    // Open MPI does not survive a second MPI_Cancel of a request.
    if (std::exchange(cancelled_, true)) return;
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (parts_[i].incoming && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  }

  bool done() const {
    return !any_pending([](Part const&) { return true; });
  }
  bool receives_done() const {
    return !any_pending([](Part const& part) { return part.incoming; });
  }
  /// True if all its messages are in own_bytes().
  bool owns_bytes() const { return !own_.empty(); }
  /// True if MPI may still read the caller's bytes for a message to this peer.
  bool reads_callers_bytes_for(Rank peer) const {
    return !owns_bytes() && any_pending([&](Part const& part) { return !part.incoming && part.peer == peer; });
  }

  /// A rank with which a message is still pending: a sender if there is one; unknown if none is pending.
  Rank awaited() const {
    Rank peer = CommunicationError::unknown;
    any_pending([&](Part const& part) {
      peer = part.peer;
      return part.incoming;
    });
    return peer;
  }

  /// True if matches(peer) holds for the peer of every pending message.
  template <class Matches>
  bool waits_only_for(Matches matches) const {
    return !any_pending([&](Part const& part) { return !matches(part.peer); });
  }

  /// The first error found in this exchange; none while there is no error.
  std::optional<RingFailure> const& failure() const { return failure_; }

  Awaited description() const noexcept { return hop_ == 0 ? Awaited(what_) : Awaited(what_, " shift, hop ", hop_); }

 private:
  static constexpr std::size_t list_run = SIZE_MAX, list_words = 64, lengths_begin = 3;

  /// The list sent ahead of the runs: their number, a digest of their lengths, the position that they belong to, and as
  /// many lengths as fit. Its maximum size is fixed: no received list is truncated, whatever a peer sends.
  using RunList = std::array<std::uint64_t, list_words>;

  /// The list that this rank expects from a peer or sends to it, and the one that arrives.
  struct RunLists {
    RunList own{}, arriving{};
  };

  /// One request.
  struct Part {
    Rank peer;
    bool incoming;
    std::size_t run;    ///< list_run for the list of runs
    std::size_t lists;  ///< index into lists_
    std::size_t bytes;
  };

  /// True if matches(part) holds for a pending message; asks about no other then.
  template <class Matches>
  bool any_pending(Matches matches) const {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && matches(parts_[i])) return true;
    return false;
  }

  template <class Runs>
  RunList list_of(Runs runs) const {
    RunList list{runs.size(), 0, position_.packed()};
    for (std::size_t p = 0; p < runs.size(); ++p) {
      std::uint64_t const length = runs[p].size();
      list[1] = digest_of(std::as_bytes(std::span(&length, 1)), list[1]);
      if (p + lengths_begin < list_words) list[p + lengths_begin] = length;
    }
    return list;
  }

  /// Calls post(piece) for consecutive pieces of at most limit_ bytes.
  template <class Bytes, class Post>
  void in_pieces(Bytes bytes, Post post) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(limit_, bytes.size())))
      post(bytes.first(std::min(limit_, bytes.size())));
  }

  MPI_Request& add(Part const& part) {
    parts_.push_back(part);
    indices_.resize(parts_.size());
    statuses_.resize(parts_.size());
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  void post_receive(std::span<std::byte> bytes, int tag, Part const& part) {
    MPI_Request& request = add(part);
    int const count = static_cast<int>(bytes.size());
    check_mpi(MPI_Irecv(bytes.data(), count, MPI_BYTE, part.peer, tag, communicator_, &request), "MPI_Irecv", rank_,
              part.peer);
  }

  void post_send(std::span<std::byte const> bytes, int tag, Rank to) {
    MPI_Request& request = add({to, false, 0, 0, bytes.size()});
    int const count = static_cast<int>(bytes.size());
    check_mpi(MPI_Isend(bytes.data(), count, MPI_BYTE, to, tag, communicator_, &request), "MPI_Isend", rank_, to);
    ++peers_[static_cast<std::size_t>(to)].sent;
  }

  void finish(std::size_t index, MPI_Status const& status, int code) {
    Part const& part = parts_[index];
    // MPI does not free a request that completed with an error.
    if (requests_[index] != MPI_REQUEST_NULL) MPI_Request_free(&requests_[index]);
    int cancelled = 0, bytes = 0;
    MPI_Test_cancelled(&status, &cancelled);
    if (cancelled != 0) return;
    if (part.incoming) ++peers_[static_cast<std::size_t>(part.peer)].received;
    if (code != MPI_SUCCESS) return complain(mpi_error_text(code), part.peer);
    if (!part.incoming) return;
    if (part.run == list_run) return hop_ == 0 ? gather_list(part) : compare(*lists_[part.lists], part.peer, part.peer);
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != part.bytes)
      complain(wrong_run_length(part.run, part.bytes, bytes).view(), part.peer);
  }

  /// Notes a list of an all-gather; all lists are compared together. A rank whose record differs in length from all
  /// others is to blame itself; of two ranks, each blames the other.
  void gather_list(Part const& part) {
    bool const differs = lists_[part.lists]->arriving != lists_[part.lists]->own;
    if (differs && lists_different_++ == 0) first_different_ = part;
    std::size_t const peers = lists_.size() / 2;  // one list from each peer and one to each peer
    if (++lists_arrived_ < peers || lists_different_ == 0) return;
    compare(*lists_[first_different_.lists], first_different_.peer,
            peers > 1 && lists_different_ == peers ? rank_ : first_different_.peer);
  }

  void compare(RunLists const& lists, Rank from, Rank culprit) {
    auto const& [expected, arriving] = lists;
    if (arriving == expected) return;
    if (auto const position = CallPosition::unpacked(arriving[2]); position != position_)
      return complain(wrong_position(position_, position).view(), from, culprit);
    if (arriving[0] != expected[0]) return complain(wrong_run_count(expected[0], arriving[0]).view(), from, culprit);
    for (std::size_t word = lengths_begin; word < list_words; ++word)
      if (arriving[word] != expected[word])
        return complain(wrong_run_length(word - lengths_begin, expected[word], arriving[word]).view(), from, culprit);
    complain("expected other lengths in the runs that follow", from, culprit);
  }

  void complain(std::string_view text, Rank from) noexcept { complain(text, from, from); }
  void complain(std::string_view text, Rank from, Rank culprit) noexcept {
    if (failure_) return;
    failure_ = RingFailure::received(rank_, text, from, culprit);
    failure_->text.add(" (", description().view(), ")");
  }

  MPI_Comm communicator_;
  Rank rank_;
  std::string_view what_;
  int hop_;
  CallPosition position_;
  MpiTags tags_;
  std::size_t limit_;
  std::span<MpiPeer> peers_;
  std::vector<std::unique_ptr<RunLists>> lists_;
  std::vector<std::byte> own_;
  std::vector<Part> parts_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::size_t lists_arrived_ = 0, lists_different_ = 0;
  Part first_different_{};
  bool outlives_closing_ = false, cancelled_ = false;
  std::optional<RingFailure> failure_;
};

}  // namespace annulus::detail
