// Benchmark of steps with one or a few query rows against many keys, whose time is that of reading keys and values:
// the bytes of keys and values per second, relative to a loop that only reads them, measured in alternation. Several
// copies of the operands are used in turns, so that none is in a cache. The first result is compared with attention in
// double before it is timed.
//
//   --cases=table   16,384 and 131,072 keys (the default)     --cases=tiny   negligible time
//
//   GB/s        bytes of keys and values per second
//   read_GB/s   bytes per second of the loop, on as many threads
//   read_%      the ratio of the two: median over pairs of measurements

#include <benchmark/benchmark.h>
#include <annulus/annulus.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/operands.hpp"
#include "bench_main.hpp"
#include "decode/decode_case.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

template <class T>
void decode(benchmark::State& state, DecodeCase const& shape) {
  using A = annulus::Accumulator<T>;
  using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  constexpr double bytes_of_caches = 256e6;
  double const bytes = 2.0 * static_cast<double>(shape.keys * shape.kv_heads * shape.dim) * sizeof(T);
  auto const copies = static_cast<std::size_t>(shape.keys < 16384 ? 1 : std::ceil(bytes_of_caches / bytes) + 1);
  std::uint64_t stream = 0;
  auto const random = [&](Index rows, Index heads) {
    Tensor tensor(1, rows, heads, shape.dim);
    for (Index i = 0; i < tensor.size(); ++i)
      tensor.data()[i] = static_cast<T>(value_at(stream, static_cast<std::uint64_t>(i)));
    ++stream;
    return tensor;
  };
  Tensor const q = random(shape.queries, shape.query_heads);
  std::vector<Tensor> k, v;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    k.push_back(random(shape.keys, shape.kv_heads));
    v.push_back(random(shape.keys, shape.kv_heads));
  }
  Tensor output(1, shape.queries, shape.query_heads, shape.dim);
  Eigen::Tensor<A, 3, Eigen::RowMajor> lse(1, shape.query_heads, shape.queries);
  annulus::SelfRing ring;
  annulus::CpuBackend backend{.threads = shape.threads};
  annulus::RingAttention attention(ring, backend, {});
  attention.forward_into(q, k[0], v[0], output, lse);
  double const error = error_of(shape, q.data(), k[0].data(), v[0].data(), output.data());
  double const bound = sizeof(T) == 8 ? 1e-13 : sizeof(T) == 4 ? 2e-6 : 8e-3;
  if (!(error <= bound)) return fail(state, "the error is " + two_digits(error));

  std::vector<double> rates, read_rates, ratios;
  std::size_t turn = 0;
  for (auto _ : state) {
    std::size_t const copy = ++turn % copies, other = (turn + copies / 2) % copies;
    double const reading = seconds_of_reading(reinterpret_cast<std::byte const*>(k[other].data()),
                                              reinterpret_cast<std::byte const*>(v[other].data()),
                                              static_cast<Index>(bytes / 2), shape.threads);
    double const seconds =
        elapsed_in([&] { attention.forward_into(q, k[copy], v[copy], output, lse); }).seconds(shape.threads);
    state.SetIterationTime(seconds);
    rates.push_back(bytes / seconds);
    read_rates.push_back(bytes / reading);
    ratios.push_back(reading / seconds);
  }
  state.counters["GB/s"] = median(rates) * 1e-9;
  state.counters["read_GB/s"] = median(read_rates) * 1e-9;
  state.counters["read_%"] = median(ratios) * 100;
  state.counters["error"] = error;
}

void register_cases(bool tiny) {
  auto const add = [&]<class T>(T, std::string const& element, DecodeCase const& shape) {
    std::string const name = "decode/" + element + "/heads:" + std::to_string(shape.query_heads) + ":" +
                             std::to_string(shape.kv_heads) + "/queries:" + std::to_string(shape.queries) +
                             "/keys:" + std::to_string(shape.keys) + "/threads:" + std::to_string(shape.threads);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      decode<T>(state, shape);
    })->UseManualTime();
  };
  int const cores = annulus::default_threads();
  std::vector<int> thread_counts{1};
  if (cores > 1) thread_counts.push_back(cores);
  for (int threads : thread_counts)
    for (Index keys : tiny ? std::vector<Index>{300} : std::vector<Index>{16384, 131072})
      for (Index kv_heads : {8, 1}) {
        DecodeCase const shape{1, 8, kv_heads, keys, 128, threads};
        add(float(), "float32", shape);
        add(Eigen::bfloat16(), "bfloat16", shape);
        add(Eigen::half(), "float16", shape);
        add(double(), "float64", shape);
      }
}

}  // namespace
}  // namespace annulus_bench

int main(int argc, char** argv) {
  using namespace annulus_bench;
  register_cases(take_option(argc, argv, "cases", "table") == "tiny");
  return run_benchmarks(argc, argv);
}
