#pragma once
// Construction of a ring over MPI: its options, and replica groups, a partition of the ranks in which each group forms
// a ring of its own.

#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/mpi/call.hpp"
#include "annulus/core/digest.hpp"

namespace annulus {

/// Options of MpiRing.
struct MpiRingOptions {
  /// The longest wait of this rank, after which the peer counts as late; at least 1 ms. Ranks may choose differently.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Longer runs are sent in several messages. Between 1 and INT_MAX (MPI counts with int); the same on all ranks.
  std::size_t max_message_bytes = std::size_t{1} << 30;
  /// Possible if all ranks of the ring run on one node (Linux, one user, no container boundary between them). A ring
  /// over several nodes is as fast as its slowest hop, so all its hops are messages. During compute, messages advance
  /// only as far as MPI moves them by itself or the backend calls Step::progress; a progress thread inside MPI takes a
  /// core from the compute, and is not offered. The same on all ranks.
  ZeroCopy zero_copy = ZeroCopy::automatic;
};

namespace detail {

/// Throws UnsupportedError for options of a rank that are out of range.
inline void validate(MpiRingOptions const& options, Rank rank) {
  check<UnsupportedError>(options.timeout.count() >= 1, "rank ", rank, ": MpiRingOptions: timeout is ",
                          options.timeout.count(), " ms; at least 1 ms is accepted");
  check<UnsupportedError>(options.max_message_bytes >= 1 && options.max_message_bytes <= INT_MAX, "rank ", rank,
                          ": MpiRingOptions: max_message_bytes is ", options.max_message_bytes, "; 1 to ", INT_MAX,
                          " are accepted");
  check<UnsupportedError>(options.zero_copy == ZeroCopy::automatic || options.zero_copy == ZeroCopy::never ||
                              options.zero_copy == ZeroCopy::always,
                          "rank ", rank, ": MpiRingOptions: zero_copy is ", static_cast<int>(options.zero_copy),
                          "; automatic, never and always are accepted");
}

/// The communicator of the group that contains this rank, its ranks in the order of the group's list. Collective over
/// `communicator`. Throws on all ranks or on none: CommunicationError if ranks pass different groups, ShapeError unless
/// each rank is in exactly one group.
inline MPI_Comm communicator_of_replica_group(MPI_Comm communicator, std::vector<std::vector<int>> const& groups) {
  Rank const rank = mpi_rank(communicator);
  int const size = mpi_size(communicator);
  std::uint64_t mine = 0;
  for (auto const& group : groups) mine = digest_of(std::as_bytes(std::span(group)), mine);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size));
  check_mpi(MPI_Allgather(&mine, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, communicator), "MPI_Allgather", rank);
  for (int other = 1; other < size; ++other)
    if (all[static_cast<std::size_t>(other)] != all[0])
      throw CommunicationError(
          message_of("replica groups of rank ", other, " differ from those of rank 0; all ranks must pass the same"),
          rank, CommunicationError::unknown, other);
  auto const require = [&](bool holds, auto const&... fault) {
    check<ShapeError>(holds, fault..., "; each of the ", size, " ranks must be in exactly one");
  };
  std::vector<int> group_of(static_cast<std::size_t>(size), -1);
  int key = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    require(!groups[g].empty(), "replica group ", g, " is empty");
    for (std::size_t place = 0; place < groups[g].size(); ++place) {
      Rank const member = groups[g][place];
      require(member >= 0 && member < size, "replica group ", g, " names rank ", member, "; ranks are 0 to ", size - 1);
      int& owner = group_of[static_cast<std::size_t>(member)];
      require(owner == -1, "rank ", member, " is in replica groups ", owner, " and ", g);
      owner = static_cast<int>(g);
      if (member == rank) key = static_cast<int>(place);
    }
  }
  for (int other = 0; other < size; ++other)
    require(group_of[static_cast<std::size_t>(other)] != -1, "rank ", other, " is in no replica group");
  MPI_Comm group = MPI_COMM_NULL;
  int const color = group_of[static_cast<std::size_t>(rank)];
  check_mpi(MPI_Comm_split(communicator, color, key, &group), "MPI_Comm_split", rank);
  return group;
}

/// The first rank of `communicator` in `part`, a part of it that contains this rank. Collective over `part`, which it
/// frees.
inline Rank lowest_rank_of(MPI_Comm part, MPI_Comm communicator) {
  Rank const rank = mpi_rank(communicator);
  Rank lowest = rank;
  int const reduced = MPI_Allreduce(&rank, &lowest, 1, MPI_INT, MPI_MIN, part);
  MPI_Comm_free(&part);
  check_mpi(reduced, "MPI_Allreduce", rank);
  return lowest;
}

/// The ranks of `communicator` on this rank's node, which can share memory. Collective.
inline MPI_Comm communicator_of_node(MPI_Comm communicator) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, mpi_rank(communicator), MPI_INFO_NULL, &node),
            "MPI_Comm_split_type", mpi_rank(communicator));
  return node;
}

/// For each rank of `communicator`, the first rank on its node. Collective.
inline std::vector<Rank> near_ranks_of(MPI_Comm communicator) {
  Rank const lowest = lowest_rank_of(communicator_of_node(communicator), communicator);
  std::vector<Rank> all(static_cast<std::size_t>(mpi_size(communicator)));
  check_mpi(MPI_Allgather(&lowest, 1, MPI_INT, all.data(), 1, MPI_INT, communicator), "MPI_Allgather",
            mpi_rank(communicator));
  return all;
}

}  // namespace detail
}  // namespace annulus
