#pragma once
// CudaMemory: the memory of GPUs, whose queues are streams, and owners of what the CUDA runtime hands out. Errors of
// the runtime are thrown as Error, with the call and the GPU. Needs the CUDA toolkit; not part of the umbrella.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

namespace cuda::detail {

/// Throws Error if a call of the CUDA runtime failed: its name, the error, and the current GPU.
inline void check(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that does not stay must not be met by the next call
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  throw Error(annulus::detail::message_of(call, " on GPU ", device, ": ", cudaGetErrorString(error), " (",
                                          cudaGetErrorName(error), ")"));
}

}  // namespace cuda::detail

/// Memory of GPUs of this process.
struct CudaMemory {
  static constexpr std::array<int, 2> dlpack_devices{2, 13};  ///< kDLCUDA, kDLCUDAManaged

  /// A stream. Work on it is done in order.
  struct Queue {
    cudaStream_t stream = nullptr;

    /// True while work that is put on the stream is captured in a CUDA graph: it is done when the graph is launched.
    bool is_captured() const {
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      cuda::detail::check(cudaStreamIsCapturing(stream, &status), "cudaStreamIsCapturing");
      return status != cudaStreamCaptureStatusNone;
    }
    /// Returns when the work that is on the stream has been done; at once where it is captured. Throws Error if it
    /// failed.
    void wait() const {
      if (!is_captured()) cuda::detail::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }
    bool operator==(Queue const&) const = default;
  };
};

namespace cuda::detail {

/// Makes a GPU the current one of this thread as long as it lives.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = before_ != device;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(CurrentDevice const&) = delete;
  CurrentDevice& operator=(CurrentDevice const&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

/// Owner of a handle that `Destroy` gives back. Movable; without a handle after a move.
template <class Handle, auto Destroy>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  ~Owned() {
    if (handle_) Destroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  operator Handle() const { return handle_; }

 private:
  Handle handle_{};
};

using Event = Owned<cudaEvent_t, &cudaEventDestroy>;
using Stream = Owned<cudaStream_t, &cudaStreamDestroy>;

/// An event of the current GPU that orders work and has no time.
inline Event make_event(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return Event(event);
}
/// A stream of the current GPU that does not wait for the default stream.
inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return Stream(stream);
}

/// Bytes that `Free` gives back, with their number.
template <auto Free>
class Bytes {
 public:
  Bytes() = default;
  Bytes(void* data, Index size) : data_(data), size_(size) {}

  std::byte* data() const { return static_cast<std::byte*>(static_cast<void*>(data_)); }
  Index size() const { return size_; }

 private:
  Owned<void*, Free> data_;
  Index size_ = 0;
};

/// Memory of the current GPU, aligned to 256 bytes, contents unspecified.
using DeviceBytes = Bytes<&cudaFree>;
/// Pinned host memory, which copies to and from GPUs need not stage.
using PinnedBytes = Bytes<&cudaFreeHost>;

inline DeviceBytes allocate_device(Index bytes) {
  void* data = nullptr;
  check(cudaMalloc(&data, static_cast<std::size_t>(bytes)), "cudaMalloc");
  return {data, bytes};
}
inline PinnedBytes allocate_pinned(Index bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<std::size_t>(bytes)), "cudaMallocHost");
  return {data, bytes};
}

}  // namespace cuda::detail

}  // namespace annulus
