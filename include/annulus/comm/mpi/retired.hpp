#pragma once
// Endpoints of destroyed rings whose communicator is not freed yet.

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "annulus/comm/mpi/call.hpp"
#include "annulus/comm/mpi/endpoint.hpp"
#include "annulus/core/process.hpp"

namespace annulus::detail {

/// A communicator can be freed only when all peers have left, and a destructor must not wait for that. So communicators
/// are freed when the next ring is constructed or destroyed.
class MpiRetired {
 public:
  static void add(std::shared_ptr<MpiEndpoint> endpoint) noexcept {
    try {
      MpiRetired& retired = PerProcess<MpiRetired>::get();
      std::lock_guard const lock(retired.mutex_);
      retired.endpoints_.push_back(std::move(endpoint));
    } catch (std::exception const&) {
      // No memory to keep the endpoint: MPI_Finalize frees its communicator.
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
  /// Never destroyed: MPI holds addresses inside them until MPI_Finalize, which may run after destructors of statics.
  std::vector<std::shared_ptr<MpiEndpoint>> endpoints_;
};

}  // namespace annulus::detail
