#pragma once
// CUDA graph of the work of all ranks of a ring of GPUs.

#include <cstddef>
#include <vector>

#include "annulus/comm/peer_ring.hpp"
#include "support/cuda_graph.hpp"

namespace annulus_test {

/// An event for each rank of a ring.
class RingEvents {
 public:
  explicit RingEvents(std::vector<int> const& gpus) {
    for (int const gpu : gpus) {
      annulus::cuda::detail::CurrentDevice const current(gpu);
      events_.push_back(annulus::cuda::detail::make_event());
    }
  }

  cudaEvent_t operator[](annulus::Rank rank) const { return events_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<annulus::cuda::detail::Event> events_;
};

/// Returns when all ranks have come here.
inline void meet(annulus::PeerRing& ring) { ring.all_gather({}, {}); }

/// What the ranks put on their streams, captured together: it begins after an event of rank 0's stream, and ends before
/// the capture does. Each rank has an object.
class RingGraph {
 public:
  /// Collective. work() is this rank's work on `stream`; `events` are those of the ring.
  template <class Work>
  RingGraph(annulus::PeerRing& ring, cudaStream_t stream, RingEvents const& events, Work&& work)
      : ring_(ring), stream_(stream) {
    using annulus::cuda::detail::check;
    annulus::Rank const rank = ring.rank();
    if (rank == 0) {
      check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
      check(cudaEventRecord(events[0], stream_), "cudaEventRecord");
    }
    meet(ring_);
    if (rank != 0) check(cudaStreamWaitEvent(stream_, events[0], 0), "cudaStreamWaitEvent");
    work();
    if (rank != 0) check(cudaEventRecord(events[rank], stream_), "cudaEventRecord");
    meet(ring_);
    if (rank == 0) end_capture(events);
    meet(ring_);  // until then no stream may be waited for
  }

  std::size_t nodes() const { return graph_.nodes(); }  ///< of rank 0, which has the graph

  /// Collective: does the work of all ranks, once all have come here, and returns when it is done.
  void launch() const {
    meet(ring_);
    if (graph_) {
      graph_.launch(stream_);
      annulus::cuda::detail::check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }
    meet(ring_);
  }

 private:
  void end_capture(RingEvents const& events) {
    using annulus::cuda::detail::check;
    for (annulus::Rank other = 1; other < ring_.size(); ++other)
      check(cudaStreamWaitEvent(stream_, events[other], 0), "cudaStreamWaitEvent");
    graph_.end_capture(stream_);
  }

  annulus::PeerRing& ring_;
  cudaStream_t stream_;
  CudaGraph graph_;
};

}  // namespace annulus_test
