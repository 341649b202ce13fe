// Both passes captured in a CUDA graph: replayed on operands with other contents, it has the bits of direct calls.

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/cuda/cuda.hpp"
#include "annulus/comm/device_ring.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/tensor/cuda/device_tensor.hpp"
#include "support/catch.hpp"

using namespace annulus;
using cuda::detail::check;

namespace {

/// Both passes on one rank, on a stream of the caller, with operands and results at fixed addresses.
template <class T>
class Calls {
  using Ids = DeviceTensor<std::int32_t, 2>;
  using Statistics = DeviceTensor<Accumulator<T>, 3>;

 public:
  explicit Calls(bool documents) : documents_(documents) {}

  cudaStream_t stream() const { return stream_; }

  /// Other contents of the operands, and none of the results.
  void fill(unsigned seed) {
    std::minstd_rand random(seed);
    for (DeviceTensor<T>* x : {&q_, &k_, &v_, &dout_})
      set(*x, [&](Index) { return static_cast<T>(static_cast<float>(random() % 2001) / 1000 - 1); });
    Index const second = static_cast<Index>(20 + random() % 30);  // first row of the second document
    set(ids_, [&](Index row) { return row < second ? 1 : 2; });
    auto const none = [](auto& x) {
      using E = std::remove_pointer_t<decltype(x.data())>;
      set(x, [](Index) { return std::numeric_limits<E>::quiet_NaN(); });
    };
    for (DeviceTensor<T>* x : {&output_, &dq_, &dk_, &dv_}) none(*x);
    for (Statistics* x : {&lse_, &lse_remainder_}) none(*x);
  }

  void run() {
    Operands<T, CudaMemory> operands;
    if (documents_) operands.query_documents = operands.key_documents = ids_;
    attention_.forward_into(q_, k_, v_, output_, lse_, operands, lse_remainder_);
    attention_.backward_into(dout_, output_, lse_, q_, k_, v_,
                             GradientViews<T, CudaMemory>{dq_.view(), dk_.view(), dv_.view()}, operands,
                             lse_remainder_);
  }

  /// The bytes of all results.
  std::vector<std::byte> results() const {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<std::byte> bytes;
    auto const append = [&](auto const& x) {
      auto const host = to_host(x);
      auto const* const first = reinterpret_cast<std::byte const*>(host.data());
      bytes.insert(bytes.end(), first, first + sizeof(*host.data()) * static_cast<std::size_t>(host.size()));
    };
    for (DeviceTensor<T> const* x : {&output_, &dq_, &dk_, &dv_}) append(*x);
    for (Statistics const* x : {&lse_, &lse_remainder_}) append(*x);
    return bytes;
  }

 private:
  template <class E, std::size_t N, class Value>
  static void set(DeviceTensor<E, N>& x, Value value) {
    std::vector<E> host(static_cast<std::size_t>(x.size()));
    for (Index i = 0; i < x.size(); ++i) host[static_cast<std::size_t>(i)] = static_cast<E>(value(i));
    check(cudaMemcpy(x.data(), host.data(), host.size() * sizeof(E), cudaMemcpyHostToDevice), "cudaMemcpy");
  }

  static constexpr Index rows = 70, heads = 4, kv_heads = 2, dim = 64;

  bool documents_;
  cuda::detail::Stream stream_ = cuda::detail::make_stream();
  SelfRing self_;
  DeviceRing<CudaMemory, SelfRing> ring_{self_};
  CudaBackend backend_{CudaOptions{.stream = stream_}};
  RingAttention<DeviceRing<CudaMemory, SelfRing>, CudaBackend> attention_{ring_, backend_, {.mask = causal()}};
  DeviceTensor<T> q_{1, rows, heads, dim}, k_{1, rows, kv_heads, dim}, v_{1, rows, kv_heads, dim},
      dout_{1, rows, heads, dim}, output_{1, rows, heads, dim}, dq_{1, rows, heads, dim}, dk_{1, rows, kv_heads, dim},
      dv_{1, rows, kv_heads, dim};
  Ids ids_{1, rows};
  Statistics lse_{1, heads, rows}, lse_remainder_{1, heads, rows};
};

/// What is put on a stream by work().
class Graph {
 public:
  template <class Work>
  Graph(cudaStream_t stream, Work&& work) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    work();
    check(cudaStreamEndCapture(stream, &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(Graph const&) = delete;

  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

TEMPLATE_TEST_CASE("a captured call of both passes is replayed with the bits of direct calls", "[backend][cuda]", float,
                   Eigen::bfloat16) {
  for (bool const documents : {false, true}) {
    CAPTURE(documents);
    Calls<TestType> calls(documents);
    calls.fill(1);
    calls.run();  // makes plans, allocates and uploads
    calls.fill(2);
    auto const unwritten = calls.results();
    Graph const graph(calls.stream(), [&] { calls.run(); });
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
  Graph const graph(stream, [&] {
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
  Graph const graph(
      stream, [&] { CHECK_THROWS_AS(ring.start_shift(Channel::prefetched, 1, {}, {}, queue), UnsupportedError); });
  ring.start_shift(Channel::prefetched, 1, {}, {}, queue);
}
