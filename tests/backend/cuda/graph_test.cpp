// Both passes captured in a CUDA graph: replayed on operands with other contents, it has the bits of direct calls.

#include "annulus/comm/device_ring.hpp"
#include "annulus/comm/self.hpp"
#include "support/catch.hpp"
#include "support/cuda_graph.hpp"
#include "support/repeated_calls.hpp"

using namespace annulus;
using namespace annulus_test;
using cuda::detail::check;

namespace {

/// Captures what work() puts on a stream.
template <class Work>
void capture(CudaGraph& graph, cudaStream_t stream, Work&& work) {
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  work();
  graph.end_capture(stream);
}

}  // namespace

TEMPLATE_TEST_CASE("a captured call of both passes is replayed with the bits of direct calls", "[backend][cuda]", float,
                   Eigen::bfloat16) {
  for (bool const documents : {false, true}) {
    CAPTURE(documents);
    SelfRing self;
    DeviceRing<CudaMemory, SelfRing> ring(self);
    RepeatedCalls<TestType, DeviceRing<CudaMemory, SelfRing>> calls(ring, documents);
    calls.fill(1);
    calls.run();  // makes plans, allocates and uploads
    calls.fill(2);
    auto const unwritten = calls.results();
    CudaGraph graph;
    capture(graph, calls.stream(), [&] { calls.run(); });
    CHECK(calls.results() == unwritten);
    for (unsigned const seed : {3u, 4u}) {
      calls.fill(seed);
      graph.launch(calls.stream());
      auto const replayed = calls.results();
      calls.fill(seed);
      calls.run();
      CHECK(calls.results() == replayed);
      CHECK(replayed != unwritten);
    }
  }
}

TEST_CASE("a wait for a stream that is captured returns at once", "[backend][cuda]") {
  cuda::detail::Stream const stream = cuda::detail::make_stream();
  CudaMemory::Queue const queue{stream};
  CHECK(!queue.is_captured());
  CudaGraph graph;
  capture(graph, stream, [&] {
    CHECK(queue.is_captured());
    queue.wait();
  });
  CHECK(!queue.is_captured());
  queue.wait();
}

TEST_CASE("a message that passes through the host is refused while its queue is captured", "[backend][cuda]") {
  cuda::detail::Stream const stream = cuda::detail::make_stream();
  CudaMemory::Queue const queue{stream};
  SelfRing self;
  DeviceRing<CudaMemory, SelfRing> ring(self);
  CudaGraph graph;
  capture(graph, stream,
          [&] { CHECK_THROWS_AS(ring.start_shift(Channel::prefetched, 1, {}, {}, queue), UnsupportedError); });
  ring.start_shift(Channel::prefetched, 1, {}, {}, queue);
}
