#pragma once
// Rings whose object is gone and whose communicator is not freed yet.

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "annulus/comm/mpi/call.hpp"
#include "annulus/comm/mpi/endpoint.hpp"
#include "annulus/core/per_process.hpp"

namespace annulus::detail {

/// Freeing waits for all peers to leave, a destructor must not: so the freeing is done when the next ring comes or
/// goes.
class MpiRetired {
 public:
  static void add(std::shared_ptr<MpiEndpoint> endpoint) noexcept {
    try {
      MpiRetired& retired = PerProcess<MpiRetired>::get();
      std::lock_guard const lock(retired.mutex_);
      retired.endpoints_.push_back(std::move(endpoint));
    } catch (std::exception const&) {
      // No memory to remember it: MPI_Finalize frees the communicator.
    }
    free_what_can_be_freed();
  }

  static void free_what_can_be_freed() noexcept {
    if (!mpi_is_running()) return;
    try {
      MpiRetired& retired = PerProcess<MpiRetired>::get();
      std::lock_guard const lock(retired.mutex_);
      std::erase_if(retired.endpoints_, [](auto const& endpoint) { return endpoint->try_to_free(); });
    } catch (std::exception const&) {
      // Tried again with the next ring.
    }
  }

 private:
  std::mutex mutex_;
  /// Never destroyed: MPI knows addresses in them until it ends, which may be after the destructors of statics have run.
  std::vector<std::shared_ptr<MpiEndpoint>> endpoints_;
};

}  // namespace annulus::detail
