#pragma once
// Communicator of GPUs over NCCL, next to a communicator of host memory, such as MpiRing. Needs NCCL 2.22 or later and
// the CUDA toolkit (annulus::nccl); not part of the umbrella.

#include <memory>
#include <string_view>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/device_ring.hpp"
#include "annulus/comm/endpoint_ring.hpp"
#include "annulus/comm/nccl/endpoint.hpp"

namespace annulus {

/// One rank's end of a ring of GPUs, a thread or a process for each. The runs of a shift are sent and received as one
/// group on a stream of NCCL's, ordered by events with the caller's queue. A note about them, of a few bytes, is a
/// shift of the host's communicator: wait(queue) returns when the note of the sender has arrived, so that a peer that
/// is lost or late is found and named by the host's communicator, at its deadline. That one also gathers records and
/// closes the ring.
///
/// finish(queue) is called by all ranks together. NCCL does not say which rank an exchange waits for: if all ranks have
/// posted and work of a GPU is late, the ring is closed at the deadline, and the error of the first rank to notice
/// names that rank if its own work before the exchange is not done, else the sender of its first exchange that is not
/// done.
///
/// NCCL's kernels occupy multiprocessors. Exchanges of different channels may be in progress together, on communicators
/// of their own.
template <Communicator Host>
class NcclRing : public detail::RingOver<CudaMemory, Host> {
  using Endpoint = detail::NcclEndpoint<Host>;

 public:
  /// Both sides of a shift: what this rank sends and what it receives.
  using Transfer = detail::Pending<std::shared_ptr<Endpoint>, typename Endpoint::Shift>;

  /// Collective. The rank's GPU is current; `host` must outlive the ring. Throws Error if NCCL or CUDA does.
  explicit NcclRing(Host& host, NcclRingOptions const& options = {}) : NcclRing(host, nullptr, options) {}

  /// The ranks of `communicator`, which are those of `host` in the same order. It is split, and not used afterwards.
  NcclRing(Host& host, ncclComm_t communicator, NcclRingOptions const& options = {})
      : detail::RingOver<CudaMemory, Host>(host), endpoint_(std::make_shared<Endpoint>(host, options, communicator)) {}

  /// Throws CommunicationError if the ring is closed, and Error if NCCL or CUDA does.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, CudaMemory::Queue const& queue) {
    return {endpoint_, endpoint_->start_shift(channel, hop, out, in, queue)};
  }

  /// Collective. Returns when the work on the queue is done; see above for errors.
  void finish(CudaMemory::Queue const& queue) { endpoint_->finish(queue); }

  /// Closes the ring on all ranks and aborts NCCL; the errors of the others blame `culprit`, by default this rank.
  void abandon(std::string_view reason, Rank culprit) noexcept { endpoint_->abandon(reason, culprit); }
  void abandon(std::string_view reason) noexcept { abandon(reason, this->rank()); }

 private:
  std::shared_ptr<Endpoint> endpoint_;
};

}  // namespace annulus
