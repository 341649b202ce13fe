#pragma once
// Replica groups: a partition of MPI ranks, in which each group forms a ring of its own.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "annulus/comm/mpi/call.hpp"

namespace annulus::detail {

/// Why `groups` is not a partition of the ranks 0 .. size - 1; none if it is one.
inline std::optional<std::string> fault_of_replica_groups(std::vector<std::vector<int>> const& groups, int size) {
  std::vector<int> group_of(static_cast<std::size_t>(size), -1);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].empty()) return message_of("replica group ", g, " is empty");
    for (int const rank : groups[g]) {
      if (rank < 0 || rank >= size)
        return message_of("replica group ", g, " names rank ", rank, "; ranks are 0 to ", size - 1);
      int& owner = group_of[static_cast<std::size_t>(rank)];
      if (owner != -1) return message_of("rank ", rank, " is in replica groups ", owner, " and ", g);
      owner = static_cast<int>(g);
    }
  }
  for (int rank = 0; rank < size; ++rank)
    if (group_of[static_cast<std::size_t>(rank)] == -1) return message_of("rank ", rank, " is in no replica group");
  return std::nullopt;
}

/// FNV-1a hash of the groups and their sizes.
inline std::uint64_t digest_of_replica_groups(std::vector<std::vector<int>> const& groups) {
  std::uint64_t digest = 0xcbf29ce484222325u;
  auto const add = [&](std::uint64_t value) { digest = (digest ^ value) * 0x100000001b3u; };
  for (auto const& group : groups) {
    add(group.size());
    for (int const rank : group) add(static_cast<std::uint64_t>(rank));
  }
  return digest;
}

/// The communicator of the group that contains this rank, its ranks in the order of the group's list. Collective over
/// `communicator`. Throws on all ranks or on none: CommunicationError if ranks pass different groups, ShapeError unless
/// each rank is in exactly one group.
inline MPI_Comm communicator_of_replica_group(MPI_Comm communicator, std::vector<std::vector<int>> const& groups) {
  Rank const rank = mpi_rank(communicator);
  int const size = mpi_size(communicator);

  std::uint64_t const mine = digest_of_replica_groups(groups);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size));
  check_mpi(MPI_Allgather(&mine, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, communicator), "MPI_Allgather", rank);
  for (int other = 1; other < size; ++other)
    if (all[static_cast<std::size_t>(other)] != all[0])
      throw CommunicationError(
          message_of("replica groups of rank ", other, " differ from those of rank 0; all ranks must pass the same"),
          rank, CommunicationError::unknown, other);
  auto const fault = fault_of_replica_groups(groups, size);
  check<ShapeError>(!fault, fault.value_or(""), "; each of the ", size, " ranks must be in exactly one");

  int color = 0, key = 0;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t place = 0; place < groups[g].size(); ++place)
      if (groups[g][place] == rank) {
        color = static_cast<int>(g);
        key = static_cast<int>(place);
      }
  MPI_Comm group = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(communicator, color, key, &group), "MPI_Comm_split", rank);
  return group;
}

}  // namespace annulus::detail
