#pragma once
// Backend in CudaMemory whose work is done by host functions on a stream: it needs no kernel, and tests the order of a
// ring of GPUs with and without a GPU.

#include <exception>
#include <functional>
#include <utility>

#include "annulus/backend/reference/reference.hpp"
#include "support/cuda_space.hpp"
#include "support/queued_backend.hpp"

namespace annulus_test {

/// Managed memory as a place of tensors.
struct ManagedPlace {
  using memory_space = annulus::CudaMemory;
  using Bytes = ManagedBytes;

  template <class View>
  static void require(View const&, char const*) {}
};

/// A stream whose work the host does.
class HostFunctionDevice {
 public:
  using Place = ManagedPlace;
  using Buffer = ManagedBytes;

  HostFunctionDevice() = default;
  HostFunctionDevice(HostFunctionDevice const&) = delete;
  HostFunctionDevice& operator=(HostFunctionDevice const&) = delete;
  ~HostFunctionDevice() { cudaStreamSynchronize(space_.queue.stream); }

  CudaQueue queue() { return space_.queue; }
  void push(std::function<void()> piece) {
    put(space_.queue, [this, piece = std::move(piece)] {
      if (failure_) return;
      try {
        piece();
      } catch (...) {
        failure_ = std::current_exception();
      }
    });
  }
  void synchronize() {
    space_.queue.wait();
    if (auto const failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
  }

 private:
  std::exception_ptr failure_;  ///< used by the work on the queue
  SpaceQueue<annulus::CudaMemory> space_;
};

template <class Inner = annulus::ReferenceBackend>
using HostFunctionBackend = QueuedBackend<Inner, HostFunctionDevice>;

static_assert(annulus::Backend<HostFunctionBackend<>>);

}  // namespace annulus_test
