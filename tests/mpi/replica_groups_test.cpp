// Rings over replica groups of an MPI communicator.

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "conformance/communicator_ranks.hpp"
#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("rings of replica groups run at the same time, in the orders of their groups", "[mpi][comm][C37]") {
  // Two groups (one where there is one rank) of unequal size, neither in the order of MPI_COMM_WORLD.
  int const ranks = world_size(), first_size = (ranks + 1) / 2;
  std::vector<std::vector<int>> groups(1);
  for (int rank = ranks - 1; rank >= 0; --rank) {
    if (static_cast<int>(groups.back().size()) == first_size && groups.size() == 1) groups.emplace_back();
    groups.back().push_back(rank);
  }
  std::rotate(groups[0].begin(), groups[0].begin() + 1, groups[0].end());

  auto ring = MpiRing::from_replica_groups(MPI_COMM_WORLD, groups, options_of_tests());
  auto const& group = *std::find_if(groups.begin(), groups.end(), [](auto const& candidate) {
    return std::find(candidate.begin(), candidate.end(), world_rank()) != candidate.end();
  });
  CHECK(ring.size() == static_cast<int>(group.size()));
  CHECK(group[static_cast<std::size_t>(ring.rank())] == world_rank());

  std::vector<int> members(group.size());
  int const mine = world_rank();
  ring.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(members)));
  CHECK(members == group);

  // A second ring of the same ranks, with pending messages of both.
  MpiRing all(MPI_COMM_WORLD, options_of_tests());
  for (int round = 0; round < 5; ++round) {
    ShiftBuffers in_group(ring, 1, 2 * round, large), in_all(all, 1, 2 * round + 1, large);
    auto first = in_group.start(ring, Channel::prefetched);
    auto second = in_all.start(all, Channel::prefetched);
    second.wait();
    first.wait();
    CHECK(in_group.complaint() == "");
    CHECK(in_all.complaint() == "");
  }
}

TEST_CASE("replica groups that are not a partition are refused", "[mpi][comm]") {
  int const ranks = world_size();
  std::vector<int> everyone(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) everyone[static_cast<std::size_t>(rank)] = rank;
  auto const refusal = [](std::vector<std::vector<int>> const& groups) {
    return thrown<ShapeError>([&] { (void)MpiRing::from_replica_groups(MPI_COMM_WORLD, groups); });
  };
  CHECK_THAT(refusal({everyone, {0}}), ContainsSubstring("rank 0 is in replica groups 0 and 1"));
  CHECK_THAT(refusal({}), ContainsSubstring("rank 0 is in no replica group"));
  CHECK_THAT(refusal({everyone, {}}), ContainsSubstring("replica group 1 is empty"));
  CHECK_THAT(refusal({everyone, {ranks}}), ContainsSubstring(detail::message_of("names rank ", ranks)));
  CHECK_THAT(refusal({everyone, {-1}}), ContainsSubstring("names rank -1"));
  if (ranks > 1) {
    auto const last = ranks - 1;
    auto const fewer = std::vector<int>(everyone.begin(), everyone.end() - 1);
    CHECK_THAT(refusal({fewer}), ContainsSubstring(detail::message_of("rank ", last, " is in no replica group")));
    // One rank passes other groups: all ranks throw and name it.
    auto swapped = everyone;
    if (world_rank() == last) std::swap(swapped[0], swapped[1]);
    CHECK_THAT(thrown<CommunicationError>([&] { (void)MpiRing::from_replica_groups(MPI_COMM_WORLD, {swapped}); }),
               ContainsSubstring(detail::message_of("replica groups of rank ", last, " differ")));
  }
}
