#pragma once
// Owner of a CUDA graph that a stream has captured.

#include <cstddef>

#include "annulus/core/cuda/memory.hpp"

namespace annulus_test {

class CudaGraph {
 public:
  CudaGraph() = default;
  CudaGraph(CudaGraph const&) = delete;
  ~CudaGraph() {
    if (executable_) cudaGraphExecDestroy(executable_);
    if (graph_) cudaGraphDestroy(graph_);
  }

  /// Ends the capture of a stream. Called once.
  void end_capture(cudaStream_t stream) {
    using annulus::cuda::detail::check;
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    check(cudaGraphGetNodes(graph_, nullptr, &nodes_), "cudaGraphGetNodes");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  explicit operator bool() const { return executable_ != nullptr; }  ///< true if it has captured
  std::size_t nodes() const { return nodes_; }
  void launch(cudaStream_t stream) const {
    annulus::cuda::detail::check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::size_t nodes_ = 0;
};

}  // namespace annulus_test
