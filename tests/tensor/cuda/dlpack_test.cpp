// Tensors on GPUs that are handed out through DLPack: their device, their order to the consumer's stream, and what is
// refused. For CUDA's runtime and for the one of support/cuda_on_threads.

#include "annulus/tensor/cuda/dlpack.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "support/cuda_space.hpp"
#include "support/dlpack.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// The tensor and the streams of producer and consumer, on a GPU that is not the current one where there are several.
struct Exchange {
  explicit Exchange(int on_gpu) : gpu(on_gpu) {}

  int gpu;
  cuda::detail::CurrentDevice current{gpu};
  DeviceTensor<float, 2> tensor{3, 4};
  SpaceQueue<CudaMemory> producer, consumer;
};

/// Whether the work of the producer has been done when the consumer's stream is idle, after a tensor was handed out to
/// `stream` of the consumer, or to the consumer's if it is 0.
bool done_before_consumer(int gpu, std::intptr_t stream) {
  std::atomic<bool> done = false, released = false;
  auto const exchange = std::make_unique<Exchange>(gpu);
  put(exchange->producer.queue, [&] {
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
    while (!released && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    done = true;
  });
  {
    cuda::detail::CurrentDevice const another(0);
    if (stream == 0) stream = dlpack_stream(exchange->consumer.queue);
    auto* const managed =
        to_dlpack<DLManagedTensorVersioned>(exchange->tensor.view(), exchange->producer.queue, stream);
    managed->deleter(managed);
  }
  exchange->consumer.queue.wait();
  bool const result = done;
  released = true;
  exchange->producer.queue.wait();
  return result;
}

bool is_memory_of_cuda(void const* data) {
  cudaPointerAttributes attributes{};
  cuda::detail::check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
  return attributes.type != cudaMemoryTypeUnregistered;
}

}  // namespace

TEST_CASE("DeviceTensors are handed out with their memory, on the GPU that it is of", "[cuda][tensor]") {
  int const gpus = number_of_gpus();
  if (gpus == 0) return;
  Exchange exchange(gpus - 1);
  float* const data = exchange.tensor.data();
  cuda::detail::CurrentDevice const another(0);
  auto* const managed = to_dlpack<DLManagedTensor>(std::move(exchange.tensor));
  CHECK(managed->dl_tensor.device.device_type == kDLCUDA);
  CHECK(managed->dl_tensor.device.device_id == gpus - 1);
  auto const back = dlpack_view<float, 2, CudaMemory>(*managed);
  CHECK(back.data() == data);
  CHECK(back.extents() == std::array<Index, 2>{3, 4});
  CHECK(back.strides() == std::array<Index, 2>{4, 1});
  CHECK(is_memory_of_cuda(data));
  managed->deleter(managed);
  CHECK(!is_memory_of_cuda(data));
}

TEST_CASE("views of memory of GPUs are handed out in place, and tensors without elements too", "[cuda][tensor]") {
  int const gpus = number_of_gpus();
  if (gpus == 0) return;
  Exchange const exchange(gpus - 1);
  auto* const part = to_dlpack<DLManagedTensorVersioned>(exchange.tensor.view().slice(1, 2, 2));
  CHECK(part->dl_tensor.data == exchange.tensor.data() + 2);
  CHECK(part->dl_tensor.device.device_id == gpus - 1);
  CHECK(part->flags == 1);
  part->deleter(part);
  CHECK(is_memory_of_cuda(exchange.tensor.data()));

  ManagedBytes const bytes(16);
  auto* const managed =
      to_dlpack<DLManagedTensor>(TensorView<int, 1, CudaMemory>(reinterpret_cast<int*>(bytes.data()), {4}));
  CHECK(managed->dl_tensor.device.device_type == kDLCUDAManaged);
  CHECK(managed->dl_tensor.device.device_id == 0);
  managed->deleter(managed);

  auto* const empty = to_dlpack<DLManagedTensor>(DeviceTensor<float, 3>(2, 0, 4), exchange.producer.queue,
                                                 dlpack_stream(exchange.consumer.queue));
  CHECK(empty->dl_tensor.data == nullptr);
  CHECK(empty->dl_tensor.device.device_id == gpus - 1);
  CHECK(dlpack_view<float, 3, CudaMemory>(*empty).size() == 0);
  empty->deleter(empty);
}

TEST_CASE("the consumer's stream waits for the producer's, unless it asks for no order", "[cuda][tensor]") {
  int const gpus = number_of_gpus();
  if (gpus == 0) return;
  CHECK(done_before_consumer(gpus - 1, 0));
  CHECK(!done_before_consumer(gpus - 1, -1));
}

TEST_CASE("streams have the numbers of DLPack, which has no 0", "[cuda][tensor]") {
  if (number_of_gpus() == 0) return;
  Exchange const exchange(0);
  CHECK(dlpack_stream({}) == 1);
  CHECK(dlpack_stream(exchange.consumer.queue) == reinterpret_cast<std::intptr_t>(exchange.consumer.queue.stream));
  std::vector<float> host(4);
  auto const hand_out = [&](TensorView<float const, 2, CudaMemory> view, std::intptr_t stream) {
    static_cast<void>(to_dlpack<DLManagedTensorVersioned>(view, exchange.producer.queue, stream));
  };
  check_refused({
      {"0", "UnsupportedError", "the consumer's stream is 0; accepted by DLPack: -1",
       [&] { hand_out(exchange.tensor.view(), 0); }},
      {"-2", "UnsupportedError", "the consumer's stream is -2; accepted by DLPack: -1",
       [&] { hand_out(exchange.tensor.view(), -2); }},
      {"host memory", "UnsupportedError", "not in memory of a GPU; accepted: memory that CUDA has allocated",
       [&] {
         hand_out({host.data(), {2, 2}}, -1);
       }},
  });
}
