#pragma once
// The small messages by which ranks tell each other that they gave up, fell quiet or left.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/comm/mpi/call.hpp"
#include "annulus/comm/mpi/tags.hpp"

namespace annulus::detail {

enum class MpiNotice : char {
  abandoned = 'a',  ///< the sender gives up; text: why
  quiet = 'q',      ///< the ring is closed, and the sender has no receive posted and will post none
  left = 'l',       ///< the sender has done all its shifts; says as much as quiet does
};

/// Notices have a tag of their own on the ring's private communicator.
class MpiNotices {
 public:
  static constexpr int tag = MpiTags::notice;
  /// Below the eager limit of every transport, so that a notice leaves without its receiver's help.
  static constexpr std::size_t longest_text = 1000;

  explicit MpiNotices(MPI_Comm communicator)
      : communicator_(communicator), rank_(mpi_rank(communicator)), size_(mpi_size(communicator)) {}

  /// Does not block. What MPI refuses to send is lost: the peers' time limits remain.
  void tell_all(MpiNotice kind, std::string_view text) {
    std::string notice(1, static_cast<char>(kind));
    notice += text.substr(0, longest_text);
    std::string const& kept = *texts_.emplace_back(std::make_unique<std::string>(std::move(notice)));
    requests_.reserve(requests_.size() + static_cast<std::size_t>(size_));
    for (Rank peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      MPI_Isend(kept.data(), static_cast<int>(kept.size()), MPI_BYTE, peer, tag, communicator_,
                &requests_.emplace_back(MPI_REQUEST_NULL));
    }
  }

  /// Calls heard(peer, kind, text) for every notice that has arrived. Does not block.
  template <class Heard>
  void listen(Heard heard) {
    for (;;) {
      int arrived = 0, length = 0;
      MPI_Status status;
      if (MPI_Iprobe(MPI_ANY_SOURCE, tag, communicator_, &arrived, &status) != MPI_SUCCESS || arrived == 0) return;
      MPI_Get_count(&status, MPI_BYTE, &length);
      std::string notice(static_cast<std::size_t>(length), '\0');
      Rank const peer = status.MPI_SOURCE;
      check_mpi(MPI_Recv(notice.data(), length, MPI_BYTE, peer, tag, communicator_, MPI_STATUS_IGNORE), "MPI_Recv",
                rank_, peer);
      heard(peer, static_cast<MpiNotice>(notice.at(0)), notice.substr(1));
    }
  }

  /// All notices have left this process.
  bool all_sent() {
    int sent = 0;
    MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &sent, MPI_STATUSES_IGNORE);
    return sent != 0;
  }

 private:
  MPI_Comm communicator_;
  Rank rank_;
  int size_;
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<MPI_Request> requests_;
};

}  // namespace annulus::detail
