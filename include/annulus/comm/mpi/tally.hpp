#pragma once
// Counts of the messages exchanged with each peer: a communicator may be freed once no message is in flight.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/mpi/call.hpp"

namespace annulus::detail {

/// Messages that a rank has sent to each peer and received from each. Once both sides' counts agree, none is in flight.
struct MpiTally {
  explicit MpiTally(int ranks) : sent(static_cast<std::size_t>(ranks), 0), received(sent) {}

  std::uint64_t sent_to(Rank peer) const { return sent[static_cast<std::size_t>(peer)]; }
  std::uint64_t received_from(Rank peer) const { return received[static_cast<std::size_t>(peer)]; }

  /// Receives and drops messages of `peer` that have arrived and that no exchange waits for any more, until `messages`
  /// have been received from it. `rank` is this rank. Does not block.
  void receive_unclaimed(MPI_Comm communicator, Rank rank, Rank peer, std::uint64_t messages) {
    while (received_from(peer) < messages) {
      int arrived = 0, length = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      if (MPI_Improbe(peer, MPI_ANY_TAG, communicator, &arrived, &message, &status) != MPI_SUCCESS || arrived == 0) return;
      MPI_Get_count(&status, MPI_BYTE, &length);
      std::vector<std::byte> unclaimed(static_cast<std::size_t>(length));
      check_mpi(MPI_Mrecv(unclaimed.data(), length, MPI_BYTE, &message, MPI_STATUS_IGNORE), "MPI_Mrecv", rank, peer);
      ++received[static_cast<std::size_t>(peer)];
    }
  }

  std::vector<std::uint64_t> sent, received;
};

}  // namespace annulus::detail
