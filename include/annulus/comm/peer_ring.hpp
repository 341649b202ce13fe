#pragma once
// Communicator of GPUs of one process: a thread for each rank, any number of ranks on a GPU. Copies are made by copy
// engines and ordered by events: no multiprocessor is used, and the host does not wait for work of a GPU before the end
// of a call. Needs the CUDA toolkit (annulus::peer); not part of the umbrella.

#include <memory>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/endpoint_ring.hpp"
#include "annulus/comm/peer/endpoint.hpp"
#include "annulus/comm/threads/run_ranks.hpp"
#include "annulus/core/function_ref.hpp"

namespace annulus {

class PeerRing;

/// Runs function(ring) on a thread for each rank, with GPU gpus[rank] current, and returns when all have ended:
/// nothing, or the functions' results as a vector in rank order. If a rank throws, the others' waits fail, and
/// run_peer_ring rethrows that rank's exception. A thread cannot be ended from outside: after a deadline has passed,
/// run_peer_ring returns only when the rank that held up the ring has ended, too. Throws as PeerGroup does, and Error
/// if the system refuses the thread of a rank.
template <class Function>
auto run_peer_ring(std::vector<int> const& gpus, Function&& function, PeerRingOptions const& options = {});

/// The state shared by the ranks of a ring of GPUs. Copies of it are the same ring.
class PeerGroup {
 public:
  /// Rank i works on GPU gpus[i]. Throws UnsupportedError if a GPU does not exist or an option is out of range.
  explicit PeerGroup(std::vector<int> const& gpus, PeerRingOptions const& options = {})
      : state_(std::make_shared<detail::PeerState>(gpus, options)) {}

  int size() const { return static_cast<int>(state_->ranks.size()); }

 private:
  friend class PeerRing;

  std::shared_ptr<detail::PeerEndpoint> endpoint(Rank rank) const {
    return {state_, static_cast<detail::PeerEndpoint*>(state_->ranks[static_cast<std::size_t>(rank)].get())};
  }

  std::shared_ptr<detail::PeerState> state_;
};

/// The communicator of one rank. It is used by one thread, with the rank's GPU current. Memory that shifts read and
/// write is that of any GPU of the group.
class PeerRing : public detail::EndpointRank<std::shared_ptr<detail::PeerEndpoint>> {
 public:
  using memory_space = CudaMemory;

  /// Both sides of a shift: what this rank sends and what it receives. wait(queue) returns when the peers have posted
  /// their sides; work that is put on the queue from then on begins when the bytes have been copied.
  using Transfer = detail::Pending<std::shared_ptr<detail::PeerEndpoint>, detail::PeerEndpoint::Shift>;

  /// Each rank of a group is taken by one PeerRing.
  PeerRing(PeerGroup const& group, Rank rank) : EndpointRank(group.endpoint(rank)) {}
  PeerRing(PeerRing&&) noexcept = default;
  PeerRing& operator=(PeerRing&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    return *this;
  }
  /// From then on, waits of the others for this rank fail.
  ~PeerRing() {
    if (endpoint_) endpoint_->leave();
  }

  int gpu() const { return endpoint_->gpu(); }  ///< of this rank

  /// Throws CommunicationError if the ring is closed, Error if CUDA does, and std::bad_alloc if memory is short.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, CudaMemory::Queue const& queue) {
    return {endpoint_, endpoint_->start_shift(channel, hop, out, in, queue)};
  }

  /// Returns when the work on the queue is done; at once while the queue is captured in a CUDA graph. Throws Error if
  /// the work failed, and CommunicationError at the deadline: the culprit is the rank whose GPU, or whose thread, the
  /// others wait for.
  void finish(CudaMemory::Queue const& queue) { endpoint_->finish(queue); }

 private:
  template <class Function>
  friend auto run_peer_ring(std::vector<int> const& gpus, Function&& function, PeerRingOptions const& options);

  static void run_ranks(PeerGroup const& group, detail::FunctionRef<void(PeerRing&)> function) {
    auto const run = [&](Rank rank) { run_rank(group, rank, function); };
    detail::run_on_threads(*group.state_, "run_peer_ring", run);
  }
  static void run_rank(PeerGroup const& group, Rank rank, detail::FunctionRef<void(PeerRing&)> function) {
    PeerRing ring(group, rank);
    cuda::detail::CurrentDevice const current(ring.gpu());
    or_abandon(ring, [&] { function(ring); });
  }
};

static_assert(CallRecordingCommunicator<PeerRing> && TopologyAwareCommunicator<PeerRing>);

template <class Function>
auto run_peer_ring(std::vector<int> const& gpus, Function&& function, PeerRingOptions const& options) {
  PeerGroup const group(gpus, options);
  auto const run = [&](auto&& call) { PeerRing::run_ranks(group, call); };
  return detail::results_of_ranks<PeerRing>(group.size(), run, function);
}

}  // namespace annulus
