#pragma once
// The messages of one shift or one gathering, and what is wrong with those that arrived.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/mpi/call.hpp"

namespace annulus::detail {

/// MPI knows addresses inside it: it neither moves nor ends before its messages do.
class MpiExchange {
 public:
  /// `what` names the exchange in messages; static text.
  MpiExchange(MPI_Comm communicator, Rank rank, std::string_view what, int hop, std::size_t max_message_bytes)
      : communicator_(communicator), rank_(rank), what_(what), hop_(hop), limit_(max_message_bytes) {}

  MpiExchange(MpiExchange const&) = delete;
  MpiExchange& operator=(MpiExchange const&) = delete;

  /// Memory that lives as long as the exchange, for messages that are not the caller's. Called once, before they start.
  std::span<std::byte> own_bytes(std::size_t bytes) {
    own_.resize(bytes);
    return own_;
  }

  /// Starts to receive `runs` from a peer that sends the same runs with send_runs.
  void receive_runs(IncomingBytes runs, Rank from, int header_tag, int payload_tag) {
    expected_ = header_of(runs);
    // Longer than expected, so that a peer with more runs is told from one with other lengths.
    arriving_.resize(std::max<std::size_t>(expected_.size(), 64));
    Part const header{from, true, header_run, arriving_.size() * sizeof(std::uint64_t)};
    post_receive(std::as_writable_bytes(std::span(arriving_)), header, header_tag);
    for (std::size_t p = 0; p < runs.size(); ++p) receive(runs[p], from, payload_tag, p);
  }

  void send_runs(OutgoingBytes runs, Rank to, int header_tag, int payload_tag) {
    announced_ = header_of(runs);
    send(std::as_bytes(std::span(announced_)), to, header_tag);
    for (auto const& run : runs) send(run, to, payload_tag);
  }

  /// In messages of at most max_message_bytes; none for an empty span. `run` names the bytes in messages.
  void receive(std::span<std::byte> bytes, Rank from, int tag, std::size_t run) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(limit_, bytes.size()))) {
      auto const chunk = bytes.first(std::min(limit_, bytes.size()));
      post_receive(chunk, {from, true, run, chunk.size()}, tag);
    }
  }

  void send(std::span<std::byte const> bytes, Rank to, int tag) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(limit_, bytes.size()))) {
      auto const chunk = bytes.first(std::min(limit_, bytes.size()));
      MPI_Request& request = add({to, false, 0, chunk.size()});
      check_mpi(MPI_Isend(chunk.data(), static_cast<int>(chunk.size()), MPI_BYTE, to, tag, communicator_, &request),
                "MPI_Isend", rank_, to);
      ++sending_;
    }
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
  static constexpr std::size_t header_run = SIZE_MAX;

  struct Part {
    Rank peer;
    bool incoming;
    std::size_t run;
    std::size_t bytes;
  };

  /// How many runs, then the bytes of each.
  template <class Runs>
  static std::vector<std::uint64_t> header_of(Runs runs) {
    std::vector<std::uint64_t> header{runs.size()};
    for (auto const& run : runs) header.push_back(run.size());
    return header;
  }

  MPI_Request& add(Part const& part) {
    parts_.push_back(part);
    indices_.resize(parts_.size());
    statuses_.resize(parts_.size());
    return requests_.emplace_back(MPI_REQUEST_NULL);
  }

  void post_receive(std::span<std::byte> bytes, Part const& part, int tag) {
    MPI_Request& request = add(part);
    check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, part.peer, tag, communicator_, &request),
              "MPI_Irecv", rank_, part.peer);
    ++receiving_;
  }

  void finish(std::size_t index, MPI_Status const& status, int code) {
    Part const& part = parts_[index];
    // MPI keeps a request that completed with an error.
    if (requests_[index] != MPI_REQUEST_NULL) MPI_Request_free(&requests_[index]);
    --(part.incoming ? receiving_ : sending_);
    int cancelled = 0, bytes = 0;
    MPI_Test_cancelled(&status, &cancelled);
    if (cancelled != 0) return;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (part.incoming && part.run == header_run && code == MPI_SUCCESS)
      check_header(static_cast<std::size_t>(bytes) / sizeof(std::uint64_t), part.peer);
    else if (part.incoming && mpi_class(code) == MPI_ERR_TRUNCATE)
      complain(message_of("expected ", part.bytes, " bytes in ", name_of_run(part.run), ", got more"), part.peer);
    else if (code != MPI_SUCCESS)
      complain(mpi_error_text(code), part.peer);
    else if (part.incoming && static_cast<std::size_t>(bytes) != part.bytes)
      complain(message_of("expected ", part.bytes, " bytes in ", name_of_run(part.run), ", got ", bytes), part.peer);
  }

  void check_header(std::size_t words, Rank from) {
    if (words == 0 || words != arriving_[0] + 1)
      return complain("got a shift without a list of its runs", from);
    std::size_t const runs = expected_.size() - 1;
    if (arriving_[0] != runs) return complain(message_of("expected ", runs, " runs, got ", arriving_[0]), from);
    for (std::size_t p = 0; p < runs; ++p)
      if (arriving_[p + 1] != expected_[p + 1])
        return complain(message_of("expected ", expected_[p + 1], " bytes in run ", p, ", got ", arriving_[p + 1]), from);
  }

  static int mpi_class(int code) {
    int error_class = MPI_SUCCESS;
    MPI_Error_class(code, &error_class);
    return error_class;
  }

  static std::string name_of_run(std::size_t run) {
    return run == header_run ? std::string("the list of runs") : message_of("run ", run);
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
  std::size_t limit_;
  std::vector<std::uint64_t> announced_, expected_, arriving_;
  std::vector<std::byte> own_;
  std::vector<Part> parts_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  int receiving_ = 0, sending_ = 0;
  bool outlives_closing_ = false;
  std::string complaint_;
  Rank culprit_ = CommunicationError::unknown;
};

}  // namespace annulus::detail
