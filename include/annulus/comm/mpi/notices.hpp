#pragma once
// Notices: small messages that tell peers that a rank gave up, is late or has left. Sending one allocates nothing.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/comm/mpi/call.hpp"
#include "annulus/comm/ring_failure.hpp"

namespace annulus::detail {

/// One notice as it is sent, without the bytes behind the end of the failure's text.
struct MpiNotice {
  static constexpr int tag = 0;

  enum Kind : std::int32_t {
    abandoned,  ///< the ring is closed: the failure
    quiet,      ///< the ring is closed, and the sender has no receive posted and will post none
    late,       ///< a wait of the sender exceeded its timeout: its status, and a request for the statuses of all
    answer,     ///< to `late`: the status of the sender
    left,       ///< the last notice: the sender will send nothing more; implies quiet
  };
  static constexpr std::size_t kinds = 5;

  Kind kind = abandoned;
  std::int32_t all_sends_done = 0;  ///< left: MPI no longer reads the caller's bytes
  std::uint64_t messages = 0;       ///< left: number that the sender has sent to the receiver
  RankStatus status{};              ///< of the sender: late, answer
  RingFailure failure{};            ///< abandoned
};

/// What a rank knows of a peer. Once the counts of both sides agree, no message is in flight between them.
struct MpiPeer {
  std::uint64_t sent = 0, received = 0;  ///< messages of exchanges to the peer and from it
  bool departed = false;                 ///< it has no receive posted and will post none
  bool left = false;                     ///< it will send nothing more
  bool sends_done = false;               ///< its MPI no longer reads its caller's bytes
  std::uint64_t messages = 0;            ///< number that it has sent to this rank; known when it has left
  std::optional<RankStatus> status;

  void learn_from(MpiNotice const& notice) {
    if (notice.kind == MpiNotice::late || notice.kind == MpiNotice::answer) status = notice.status;
    if (notice.kind == MpiNotice::quiet || notice.kind == MpiNotice::left) departed = true;
    if (notice.kind != MpiNotice::left) return;
    left = true;
    sends_done = notice.all_sends_done != 0;
    messages = notice.messages;
  }
};

/// Sends and receives notices. They have a tag of their own on the ring's private communicator, and are smaller than
/// the eager limit of every transport, so that a notice leaves without its receiver's help.
class MpiNotices {
 public:
  explicit MpiNotices(MPI_Comm communicator)
      : communicator_(communicator),
        rank_(mpi_rank(communicator)),
        size_(mpi_size(communicator)),
        last_(static_cast<std::size_t>(size_)) {
    requests_.reserve(MpiNotice::kinds * static_cast<std::size_t>(size_));
  }

  /// Sends a notice to all peers: at most one of each kind, and none after `left`, because a peer may free the
  /// communicator upon it. Does not block. A notice that MPI refuses to send is lost; the peers' deadlines remain.
  void tell_all(MpiNotice const& notice) noexcept {
    auto const kind = static_cast<std::size_t>(notice.kind);
    if (told_[kind] || told_[MpiNotice::left]) return;
    told_[kind] = true;
    broadcast_[kind] = notice;
    for (Rank peer = 0; peer < size_; ++peer) send(broadcast_[kind], peer);
  }

  /// Sends notice(peer), which is of kind `left`, to each peer. Does not block.
  template <class Notice>
  void tell_each(Notice notice) noexcept {
    if (std::exchange(told_[MpiNotice::left], true)) return;
    for (Rank peer = 0; peer < size_; ++peer) {
      MpiNotice& own = last_[static_cast<std::size_t>(peer)];
      own = notice(peer);
      send(own, peer);
    }
  }

  /// Calls process(peer, notice) for every notice that has arrived. Does not block.
  template <class Process>
  void receive(Process process) {
    for (;;) {
      int arrived = 0, length = 0;
      MPI_Status status;
      int const probed = MPI_Iprobe(MPI_ANY_SOURCE, MpiNotice::tag, communicator_, &arrived, &status);
      if (probed != MPI_SUCCESS || arrived == 0) return;
      MPI_Get_count(&status, MPI_BYTE, &length);
      MpiNotice notice;
      Rank const peer = status.MPI_SOURCE;
      check_mpi(MPI_Recv(static_cast<void*>(&notice), length, MPI_BYTE, peer, MpiNotice::tag, communicator_,
                         MPI_STATUS_IGNORE),
                "MPI_Recv", rank_, peer);
      process(peer, notice);
    }
  }

  /// True if all notices have left this process.
  bool all_sent() {
    int sent = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &sent, MPI_STATUSES_IGNORE);
    return sent != 0;
  }

 private:
  void send(MpiNotice const& notice, Rank peer) noexcept {
    if (peer == rank_) return;
    std::size_t const bytes =
        offsetof(MpiNotice, failure) + offsetof(RingFailure, text) + notice.failure.text.view().size() + 1;
    MPI_Isend(static_cast<void const*>(&notice), static_cast<int>(bytes), MPI_BYTE, peer, MpiNotice::tag,
              communicator_, &requests_.emplace_back(MPI_REQUEST_NULL));
  }

  MPI_Comm communicator_;
  Rank rank_;
  int size_;
  std::array<bool, MpiNotice::kinds> told_{};
  std::array<MpiNotice, MpiNotice::kinds> broadcast_;  ///< send buffers, in use until sent
  std::vector<MpiNotice> last_;                        ///< of kind left, one for each peer
  std::vector<MPI_Request> requests_;
};

}  // namespace annulus::detail
