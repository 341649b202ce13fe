#pragma once
// DLPack for memory of GPUs: tensors that are handed to other libraries, and the order between their streams and those
// of this library. Needs the CUDA toolkit; not part of the umbrella.

#include <concepts>
#include <cstdint>
#include <utility>

#include "annulus/core/cuda/memory.hpp"
#include "annulus/tensor/cuda/device_tensor.hpp"
#include "annulus/tensor/dlpack.hpp"

namespace annulus {

/// The number that DLPack gives to the stream of a queue. Pass it as `stream` to the __dlpack__ of the library that a
/// tensor comes from: work that is then put on the queue finds the elements written.
inline std::intptr_t dlpack_stream(CudaMemory::Queue const& queue) {
  constexpr std::intptr_t legacy_default = 1;  // DLPack has no 0
  return queue.stream ? reinterpret_cast<std::intptr_t>(queue.stream) : legacy_default;
}

namespace detail {

/// Where the elements of a tensor on a GPU are; without elements: the current GPU.
inline cudaPointerAttributes attributes_of(void const* data) {
  cudaPointerAttributes attributes{};
  attributes.type = cudaMemoryTypeDevice;
  if (data)
    cuda::detail::check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  else
    cuda::detail::check(cudaGetDevice(&attributes.device), "cudaGetDevice");
  check<UnsupportedError>(attributes.type != cudaMemoryTypeUnregistered,
                          "a tensor for DLPack is not in memory of a GPU; accepted: memory that CUDA has allocated");
  return attributes;
}

/// Lets work that is put on the consumer's stream from now on begin after the work that is on the queue. Both are on
/// this GPU.
inline void wait_for_producer(std::intptr_t consumer, CudaMemory::Queue const& queue, int gpu) {
  check<UnsupportedError>(consumer > 0, "the consumer's stream is ", consumer,
                          "; accepted by DLPack: -1 for no order, 1 for the legacy default stream, 2 for that of the "
                          "thread, and a cudaStream_t");
  cuda::detail::CurrentDevice const current(gpu);
  cuda::detail::Event const written = cuda::detail::make_event();
  cuda::detail::check(cudaEventRecord(written, queue.stream), "cudaEventRecord");
  // 1 and 2 are also the handles that CUDA gives to these streams.
  cuda::detail::check(cudaStreamWaitEvent(reinterpret_cast<cudaStream_t>(consumer), written, 0), "cudaStreamWaitEvent");
}

}  // namespace detail

/// to_dlpack for a DeviceTensor or a view of memory of a GPU. The work that writes its elements must be done, as it is
/// when a call of RingAttention returns, or be on the stream of the consumer. Throws UnsupportedError for memory that
/// CUDA has not allocated.
template <DLPackManagedTensor M, TensorLike X>
requires std::same_as<SpaceOf<X>, CudaMemory>
[[nodiscard]] M* to_dlpack(X tensor) {
  cudaPointerAttributes const attributes = detail::attributes_of(view_of(tensor).data());
  auto const [on_gpu, managed] = CudaMemory::dlpack_devices;
  if (attributes.type == cudaMemoryTypeManaged) return detail::hand_out<M>(std::move(tensor), managed, 0);
  return detail::hand_out<M>(std::move(tensor), on_gpu, attributes.device);
}

/// The same for elements that work on `queue`, a stream of their GPU, writes. `stream`: that of the consumer, as DLPack
/// numbers it; work that is put on it from now on begins after the work that is on `queue`. -1: no order. Also throws
/// UnsupportedError for a number that DLPack does not accept.
template <DLPackManagedTensor M, TensorLike X>
requires std::same_as<SpaceOf<X>, CudaMemory>
[[nodiscard]] M* to_dlpack(X tensor, CudaMemory::Queue const& queue, std::intptr_t stream) {
  if (stream != -1) detail::wait_for_producer(stream, queue, detail::attributes_of(view_of(tensor).data()).device);
  return to_dlpack<M>(std::move(tensor));
}

}  // namespace annulus
