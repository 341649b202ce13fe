#pragma once
// Communicator of GPUs whose ranks are processes of one Linux node, any number of ranks on a GPU. Copies are made by
// copy engines and ordered by events that the processes share. Needs the CUDA toolkit (annulus::peer); not part of the
// umbrella.

#include <exception>
#include <memory>
#include <utility>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/endpoint_ring.hpp"
#include "annulus/comm/peer/meeting.hpp"
#include "annulus/comm/peer/process_message_endpoint.hpp"

namespace annulus {

/// One rank's end of a ring whose ranks are processes, next to PeerRing, whose ranks are threads. It is used by one
/// thread, with the GPU current that was so when the ring was made. The GPUs must access each other's memory. No
/// multiprocessor is used, and the host does not wait for work of a GPU before the end of a call.
///
/// Memory into which shifts receive is allocated by cudaMalloc: managed and pinned memory and that of pools is refused.
/// The processes run in one container, or in none. They open each other's allocations, and CUDA demands that memory be
/// freed only when no other process has it open: after close_memory(), or the end of the ring. What 8 calls in a row
/// have not used is closed, too.
///
/// A shift has at most 128 runs, and 8 shifts between two ranks may be pending on a channel. A stream that is captured
/// in a graph is refused. If a process dies while its GPU copies, the other ranks throw, but streams that wait for that
/// copy may never go on.
class PeerProcessRing : public detail::EndpointRank<std::shared_ptr<detail::PeerProcessEndpoint>> {
 public:
  using memory_space = CudaMemory;

  /// Both sides of a shift: what this rank sends and what it receives. wait(queue) returns when the peers have posted
  /// their sides; work that is put on the queue from then on begins when the bytes have been copied.
  using Transfer = detail::Pending<std::shared_ptr<detail::PeerProcessEndpoint>, detail::PeerProcessEndpoint::Shift>;

  /// Returns when all ranks have come to the meeting, whose timeout is that of all waits of the ring. Throws
  /// UnsupportedError if a field of `meeting` is out of range, CommunicationError if a rank dies or does not come in
  /// time, and Error if the system or CUDA does.
  explicit PeerProcessRing(PeerMeeting const& meeting)
      : EndpointRank(std::make_shared<detail::PeerProcessEndpoint>(meeting)) {}
  PeerProcessRing(PeerProcessRing&&) noexcept = default;
  PeerProcessRing& operator=(PeerProcessRing&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    std::swap(exceptions_, other.exceptions_);
    return *this;
  }
  /// From then on, waits of the others for this rank fail. Returns when they have closed memory of this process, at the
  /// timeout at the latest: rings are destroyed in the same order on all ranks.
  ~PeerProcessRing() {
    if (endpoint_) detail::leave_ring(*endpoint_, exceptions_);
  }

  int gpu() const { return endpoint_->gpu(); }  ///< of this rank

  /// Throws CommunicationError if the ring is closed, Error if CUDA does, and UnsupportedError as said above.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, CudaMemory::Queue const& queue) {
    return {endpoint_, endpoint_->start_shift(channel, hop, out, in, queue)};
  }

  /// Returns when the work on the queue is done. Throws Error if the work failed, and CommunicationError at the
  /// deadline: the culprit is the rank whose GPU, or whose thread, the others wait for.
  void finish(CudaMemory::Queue const& queue) { endpoint_->finish(queue); }

  /// Collective, between calls: from then on until the next shift, no other process has memory of this one open. Throws
  /// CommunicationError if the ring is or becomes closed.
  void close_memory() { endpoint_->close_memory(); }

 private:
  int exceptions_ = std::uncaught_exceptions();
};

static_assert(CallRecordingCommunicator<PeerProcessRing> && TopologyAwareCommunicator<PeerProcessRing>);

}  // namespace annulus
