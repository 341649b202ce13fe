#pragma once
// The messages of one shift or one gathering, and what is wrong with those that arrived.

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/mpi/call.hpp"
#include "annulus/comm/mpi/tags.hpp"

namespace annulus::detail {

/// MPI knows addresses inside it: it neither moves nor ends before its messages do.
class MpiExchange {
 public:
  /// `what` names the exchange in messages; static text.
  MpiExchange(MPI_Comm communicator, Rank rank, std::string_view what, int hop, MpiTags tags,
              std::size_t max_message_bytes)
      : communicator_(communicator), rank_(rank), what_(what), hop_(hop), tags_(tags), limit_(max_message_bytes) {}

  MpiExchange(MpiExchange const&) = delete;
  MpiExchange& operator=(MpiExchange const&) = delete;

  /// Memory that lives as long as the exchange, for messages that are not the caller's. Called once, before they start.
  std::span<std::byte> own_bytes(std::size_t bytes) {
    own_.resize(bytes);
    return own_;
  }

  /// Starts to receive `runs` from a peer that sends the same runs with send. Called before all calls of send.
  void receive(IncomingBytes runs, Rank from) {
    auto& list = *lists_.emplace_back(std::make_unique<RunLists>());
    list.expected = list_of(runs);
    std::size_t const index = lists_.size() - 1;
    post_receive(std::as_writable_bytes(std::span(list.arriving)), tags_.list(), {from, true, list_run, index, 0});
    for (std::size_t p = 0; p < runs.size(); ++p)
      in_pieces(runs[p], [&](std::span<std::byte> piece) {
        post_receive(piece, tags_.payload(piece.size()), {from, true, p, index, piece.size()});
      });
  }

  void send(OutgoingBytes runs, Rank to) {
    auto& list = *lists_.emplace_back(std::make_unique<RunLists>());
    list.announced = list_of(runs);
    auto const listed = std::min<std::size_t>(list_words, 2 + runs.size());
    post_send(std::as_bytes(std::span(list.announced).first(listed)), tags_.list(), to);
    for (auto const& run : runs)
      in_pieces(run, [&](std::span<std::byte const> piece) { post_send(piece, tags_.payload(piece.size()), to); });
  }

  /// It may still complete after the ring is closed.
  void outlive_closing() { outlives_closing_ = true; }
  bool outlives_closing() const { return outlives_closing_; }

  /// Lets MPI work, and notes what has completed.
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

  /// Takes back every receive that no message has met yet; progress() notes it.
  void cancel_receives() {
    // Open MPI does not survive a second MPI_Cancel of a request.
    if (std::exchange(cancelled_, true)) return;
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (parts_[i].incoming && requests_[i] != MPI_REQUEST_NULL) MPI_Cancel(&requests_[i]);
  }

  bool done() const { return receiving_ == 0 && sending_ == 0; }
  bool receives_done() const { return receiving_ == 0; }

  /// Some rank for which a message is still under way, a sender if there is one.
  Rank awaited() const {
    Rank receiver = CommunicationError::unknown;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (parts_[i].incoming) return parts_[i].peer;
      receiver = parts_[i].peer;
    }
    return receiver;
  }

  /// matches(peer) for the peer of every message under way.
  template <class Matches>
  bool waits_only_for(Matches matches) const {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL && !matches(parts_[i].peer)) return false;
    return true;
  }

  /// What is wrong with what arrived; empty while nothing is.
  std::string const& complaint() const { return complaint_; }
  Rank culprit() const { return culprit_; }

  std::string description() const { return hop_ == 0 ? std::string(what_) : message_of(what_, " shift, hop ", hop_); }

 private:
  static constexpr std::size_t list_run = SIZE_MAX, list_words = 64;

  /// How many runs, a digest of their lengths, and the lengths of as many as there is room for. Never longer, so that
  /// no list is cut off whatever a peer sends.
  using RunList = std::array<std::uint64_t, list_words>;

  struct RunLists {
    RunList expected{}, arriving{}, announced{};
  };

  struct Part {
    Rank peer;
    bool incoming;
    std::size_t run;    ///< list_run for the list of runs
    std::size_t lists;  ///< index into lists_
    std::size_t bytes;
  };

  template <class Runs>
  static RunList list_of(Runs runs) {
    RunList list{runs.size(), 0xcbf29ce484222325u};
    for (std::size_t p = 0; p < runs.size(); ++p) {
      list[1] = (list[1] ^ runs[p].size()) * 0x100000001b3u;
      if (p + 2 < list_words) list[p + 2] = runs[p].size();
    }
    return list;
  }

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
    check_mpi(
        MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, part.peer, tag, communicator_, &request),
        "MPI_Irecv", rank_, part.peer);
    ++receiving_;
  }

  void post_send(std::span<std::byte const> bytes, int tag, Rank to) {
    MPI_Request& request = add({to, false, 0, 0, bytes.size()});
    check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, tag, communicator_, &request),
              "MPI_Isend", rank_, to);
    ++sending_;
  }

  void finish(std::size_t index, MPI_Status const& status, int code) {
    Part const& part = parts_[index];
    // MPI keeps a request that completed with an error.
    if (requests_[index] != MPI_REQUEST_NULL) MPI_Request_free(&requests_[index]);
    --(part.incoming ? receiving_ : sending_);
    int cancelled = 0, bytes = 0;
    MPI_Test_cancelled(&status, &cancelled);
    if (cancelled != 0) return;
    if (code != MPI_SUCCESS) return complain(mpi_error_text(code), part.peer);
    if (!part.incoming) return;
    if (part.run == list_run) return compare(*lists_[part.lists], part.peer);
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != part.bytes)
      complain(message_of("expected ", part.bytes, " bytes in run ", part.run, ", got ", bytes), part.peer);
  }

  void compare(RunLists const& lists, Rank from) {
    auto const& [expected, arriving, announced] = lists;
    if (arriving == expected) return;
    if (arriving[0] != expected[0])
      return complain(message_of("expected ", expected[0], " runs, got ", arriving[0]), from);
    for (std::size_t word = 2; word < list_words; ++word)
      if (arriving[word] != expected[word])
        return complain(message_of("expected ", expected[word], " bytes in run ", word - 2, ", got ", arriving[word]),
                        from);
    complain(message_of("expected other lengths in the runs after run ", list_words - 3), from);
  }

  void complain(std::string const& text, Rank from) {
    if (!complaint_.empty()) return;
    complaint_ = message_of("rank ", rank_, ": ", text, " from rank ", from, " (", description(), ")");
    culprit_ = from;
  }

  MPI_Comm communicator_;
  Rank rank_;
  std::string_view what_;
  int hop_;
  MpiTags tags_;
  std::size_t limit_;
  std::vector<std::unique_ptr<RunLists>> lists_;
  std::vector<std::byte> own_;
  std::vector<Part> parts_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  int receiving_ = 0, sending_ = 0;
  bool outlives_closing_ = false, cancelled_ = false;
  std::string complaint_;
  Rank culprit_ = CommunicationError::unknown;
};

}  // namespace annulus::detail
