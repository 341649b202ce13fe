// Benchmark of decode on a GPU: bytes of keys and values per second of the steps of a call, and of whole calls of
// CachedAttention, relative to a device-to-device copy, of which the bytes read and written count. bfloat16, 8 kv heads
// with 8 query heads each, head_dim 128, one new row for each sequence. Medians; the copy is measured next to each case.
// So many sequences are used in turn that the cache of the GPU holds none. Results are compared with attention in double.
//
//   decode_bench [most bytes of keys and values]        default: 20e9

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/attention/cache/cached_attention.hpp>
#include <annulus/backend/cuda/cuda.hpp>
#include <annulus/comm/device_ring.hpp>
#include <annulus/tensor/cuda/device_tensor.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <vector>

namespace {

using annulus::CudaBackend;
using annulus::CudaMemory;
using annulus::Index;
using T = Eigen::bfloat16;
using HostTensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
using annulus::cuda::detail::check;

constexpr Index kv_heads = 8, group = 8, heads = kv_heads * group, dim = 128;
constexpr Index block = 8192;  ///< rows that a sequence repeats
constexpr int rounds = 9;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

/// Median of the seconds that a stream takes for work(), put on it `times` times at once.
double seconds_on(cudaStream_t stream, int times, std::function<void()> const& work) {
  auto const begin = annulus::cuda::detail::make_event(0), end = annulus::cuda::detail::make_event(0);
  std::vector<double> seconds;
  for (int round = 0; round <= rounds; ++round) {
    check(cudaEventRecord(begin, stream), "cudaEventRecord");
    for (int i = 0; i < times; ++i) work();
    check(cudaEventRecord(end, stream), "cudaEventRecord");
    check(cudaEventSynchronize(end), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (round > 0) seconds.push_back(milliseconds * 1e-3 / times);
  }
  return median(seconds);
}

/// Bytes per second of a copy, read and written.
double copy_rate(cudaStream_t stream) {
  static annulus::DeviceTensor<T, 1> const from(Index{1} << 29);
  static annulus::DeviceTensor<T, 1> to(Index{1} << 29);
  std::size_t const bytes = std::size_t{1} << 30;
  double const seconds = seconds_on(stream, 4, [&] {
    check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

HostTensor random_rows(Index batch, Index rows, Index of_heads, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  HostTensor tensor(batch, rows, of_heads, dim);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<T>(uniform(engine));
  return tensor;
}

/// Sequences of equal length in a cache, and what is decoded.
struct Sequences {
  Index count, together, length;
  HostTensor q, k, v;  ///< k and v: the rows that all sequences repeat

  Sequences(Index number, Index context, double most_bytes)
      : together(number),
        length(context),
        q(random_rows(number, 1, heads, 1)),
        k(random_rows(1, block, kv_heads, 2)),
        v(random_rows(1, block, kv_heads, 3)) {
    constexpr double of_caches = 400e6;
    count = together;
    while (static_cast<double>(count) * bytes_of_one() < std::min(of_caches, most_bytes)) count += together;
  }
  double bytes_of_one() const { return 2.0 * static_cast<double>(length * kv_heads * dim) * sizeof(T); }

  /// Largest error of the output of the first query of the first kv head.
  double error_of(HostTensor const& output) const {
    std::vector<double> sums(dim, 0.0);
    double sum = 0, error = 0;
    for (Index j = 0; j < block; ++j) {
      double product = 0;
      for (Index d = 0; d < dim; ++d) product += static_cast<float>(q(0, 0, 0, d)) * static_cast<float>(k(0, j, 0, d));
      double const weight = std::exp(product / std::sqrt(static_cast<double>(dim)));
      sum += weight;
      for (Index d = 0; d < dim; ++d) sums[static_cast<std::size_t>(d)] += weight * static_cast<float>(v(0, j, 0, d));
    }
    for (Index d = 0; d < dim; ++d)
      error =
          std::max(error, std::abs(sums[static_cast<std::size_t>(d)] / sum - static_cast<float>(output(0, 0, 0, d))));
    return error;
  }
};

/// Operands of the steps, without a cache: one fold a sequence, as CachedAttention makes it, or one of all.
class Steps {
 public:
  Steps(Sequences const& sequences, CudaBackend& backend)
      : sequences_(sequences),
        backend_(backend),
        q_(annulus::to_device(sequences.q)),
        k_(sequences.count, sequences.length, kv_heads, dim),
        v_(sequences.count, sequences.length, kv_heads, dim),
        accumulator_(sequences.together, 1, heads, dim),
        maximum_(sequences.together, heads, 1),
        sum_(sequences.together, heads, 1),
        positions_(static_cast<std::size_t>(sequences.length)) {
    auto const k = annulus::to_device(sequences.k), v = annulus::to_device(sequences.v);
    for (Index b = 0; b < sequences.count; ++b)
      for (Index row = 0; row < sequences.length; row += block) {
        backend.copy(k.view(), k_.view().slice(0, b, 1).slice(1, row, block));
        backend.copy(v.view(), v_.view().slice(0, b, 1).slice(1, row, block));
      }
    std::iota(positions_.begin(), positions_.end(), Index{0});
    backend.reset(state(0, sequences.together));
    backend.synchronize();
  }

  /// Folds the next sequences, `at_once` in a step.
  void fold(Index at_once) {
    Index const first = turn_++ * sequences_.together % sequences_.count;
    for (Index b = 0; b < sequences_.together; b += at_once) fold(first + b, b, at_once);
  }

 private:
  annulus::RunningState<float, CudaMemory> state(Index first, Index count) {
    return {accumulator_.view().slice(0, first, count), maximum_.view().slice(0, first, count),
            sum_.view().slice(0, first, count)};
  }
  void fold(Index sequence, Index query, Index count) {
    Index const position = sequences_.length - 1;
    annulus::Tile const tile{.query_count = 1,
                             .key_count = sequences_.length,
                             .query_position = position,
                             .coverage = annulus::Coverage::full};
    annulus::Step<T, annulus::EveryPair, CudaMemory> const step{
        .tiles = {&tile, 1},
        .rules = {.mask = annulus::causal(), .softmax_scale = 1 / std::sqrt(static_cast<double>(dim))},
        .query_positions = {&position, 1},
        .key_positions = positions_,
        .predicate = &every_pair_,
        .recomputed = false};
    backend_.fold(
        step,
        annulus::StepOperands<T, CudaMemory>{q_.view().slice(0, query, count), k_.view().slice(0, sequence, count),
                                             v_.view().slice(0, sequence, count)},
        state(query, count));
  }

  Sequences const& sequences_;
  CudaBackend& backend_;
  annulus::DeviceTensor<T> q_, k_, v_;
  annulus::DeviceTensor<float> accumulator_;
  annulus::DeviceTensor<float, 3> maximum_, sum_;
  std::vector<Index> positions_;
  annulus::EveryPair every_pair_{};
  Index turn_ = 0;
};

/// Seconds of a call of CachedAttention that appends a row to each sequence, by the clock of the host; and the error of
/// the first result.
std::pair<double, double> seconds_of_call(Sequences const& sequences, CudaBackend& backend) {
  annulus::SelfRing self;
  annulus::DeviceRing<CudaMemory, annulus::SelfRing> ring(self);
  constexpr Index page_rows = 1024;
  annulus::KvCache<T, CudaBackend> cache(ring, backend,
                                         {.kv_heads = kv_heads,
                                          .head_dim = dim,
                                          .value_dim = dim,
                                          .pages = sequences.count * (sequences.length / page_rows + 1),
                                          .page_rows = page_rows});
  annulus::CachedAttention attention(ring, backend, {.mask = annulus::causal(), .checked = false});
  auto const k = annulus::to_device(sequences.k), v = annulus::to_device(sequences.v),
             q = annulus::to_device(sequences.q);
  std::vector<Index> all;
  for (Index b = 0; b < sequences.count; ++b) {
    all.push_back(cache.create());
    for (Index row = 0; row < sequences.length; row += block) attention.append<T>(cache, std::span(all).last(1), k, v);
  }
  annulus::DeviceTensor<T> output(sequences.together, 1, heads, dim);
  annulus::DeviceTensor<float, 3> lse(sequences.together, heads, Index{1});
  auto const together = static_cast<std::size_t>(sequences.together);
  attention.decode_into<T>(cache, std::span(all).first(together), q, output, lse);
  HostTensor host(sequences.together, 1, heads, dim);
  annulus::to_host(output, host);
  auto const new_k = annulus::to_device(random_rows(sequences.together, 1, kv_heads, 4));
  std::vector<double> seconds;
  for (int i = 0; i < 40; ++i) {
    auto const of_call = std::span(all).subspan(static_cast<std::size_t>(i) * together % all.size(), together);
    auto const begin = std::chrono::steady_clock::now();
    attention.decode_into<T>(cache, of_call, q, new_k, new_k, output, lse);
    if (i >= 8) seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return {median(seconds), sequences.error_of(host)};
}

void run(Index together, Index length, double most_bytes) {
  Sequences const sequences(together, length, most_bytes);
  double const bytes = sequences.bytes_of_one() * static_cast<double>(together);
  if (bytes > most_bytes) return;
  CudaBackend backend;
  double const copy = copy_rate(backend.queue().stream);
  double single = 0, batched = 0;
  {
    Steps steps(sequences, backend);
    int const times = static_cast<int>(std::clamp(2e10 / bytes, 4.0, 200.0));
    single = seconds_on(backend.queue().stream, times, [&] { steps.fold(1); });
    batched = seconds_on(backend.queue().stream, times, [&] { steps.fold(together); });
  }
  auto const [call, error] = seconds_of_call(sequences, backend);
  auto const share = [&](double seconds) { return bytes / seconds / copy * 100; };
  std::printf("%9lld %9lld %10.0f %12.1f %7.1f %% %12.1f %7.1f %% %12.1f %7.1f %%   %.1e%s\n",
              static_cast<long long>(together), static_cast<long long>(length), copy * 1e-9, single * 1e6,
              share(single), batched * 1e6, share(batched), call * 1e6, share(call), error,
              error <= 2e-3 ? "" : "  WRONG");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  double const most_bytes = argc > 1 ? std::atof(argv[1]) : 20e9;
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s; times in microseconds, shares of the rate of a copy\n", properties.name);
  std::printf(
      "sequences      keys  copy GB/s  step a sequence          one step of all              call       error\n");
  for (Index const length : {8192, 65536, 262144})
    for (Index const together : {1, 8}) run(together, length, most_bytes);
}
