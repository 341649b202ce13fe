#pragma once
// Division of cores among the processes of one node that are bound to the same cores, or to none.

#include <cstddef>
#include <span>
#include <vector>

#include "annulus/comm/mpi/call.hpp"
#include "annulus/core/process.hpp"

namespace annulus::detail {

/// Limits ProcessCores to this process's share among those of the communicator that run on its node. Collective.
inline void share_cores_of_node(MPI_Comm communicator) {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node), "MPI_Comm_split_type");
  CoreSet const mine = CoreSet::of_process();
  std::vector<CoreSet> all(static_cast<std::size_t>(mpi_size(node)));
  int const rank = mpi_rank(node), bytes = static_cast<int>(sizeof(CoreSet));
  int const gathered = MPI_Allgather(&mine, bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, node);
  MPI_Comm_free(&node);
  check_mpi(gathered, "MPI_Allgather");
  ProcessCores::shared().limit(divide_cores(all)[static_cast<std::size_t>(rank)]);
}

}  // namespace annulus::detail
