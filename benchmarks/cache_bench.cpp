// Benchmark of decoding against a cache of keys and values, whose time is that of reading them, relative to a loop that
// only reads as many bytes, measured in alternation. The first result is compared with attention in double.
//
//   --cases=table   (the default)     --cases=tiny   negligible time
//
// Names: heads:<query>:<kv>, batch, keys of each sequence, pages (adjacent in memory, or every second one of another
// sequence), ranks of one thread each, threads of one rank.
//
//   GB/s        bytes of keys and values per second
//   read_GB/s   bytes per second of the loop, on as many threads
//   read_%      the ratio of the two: median over pairs of measurements
//   sent_B      bytes that a rank sends for one row of each sequence

#include <benchmark/benchmark.h>
#include <annulus/annulus.hpp>
#include <annulus/attention/cache/cached_attention.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "attention/values.hpp"
#include "bench_main.hpp"
#include "decode/decode_case.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

struct CacheCase {
  DecodeCase shape;
  Index batch;
  bool scattered;  ///< no two pages of a sequence are adjacent
  int ranks;
};

/// Takes every second page of the cache.
template <class Cache, class Attention, class Tensor>
std::vector<Index> occupy_every_second_page(Cache& cache, Attention& attention, Tensor const& row) {
  std::vector<Index> sequences;
  for (Index page = 0; page < cache.shape().pages * cache.table().ranks(); ++page) {
    std::array const one{cache.create()};
    attention.append(cache, one, row, row);
    sequences.push_back(one[0]);
  }
  std::vector<Index> kept;
  for (Index sequence : sequences)
    if (cache.table().pages(sequence)[0].slot % 2 == 0)
      cache.release(sequence);
    else
      kept.push_back(sequence);
  return kept;
}

template <class T>
void decode(benchmark::State& state, CacheCase const& one) {
  using A = annulus::Accumulator<T>;
  using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  DecodeCase const& shape = one.shape;
  std::uint64_t stream = 0;
  auto const random = [&](Index batch, Index rows, Index heads) {
    Tensor tensor(batch, rows, heads, shape.dim);
    for (Index i = 0; i < tensor.size(); ++i)
      tensor.data()[i] = static_cast<T>(value_at(stream, static_cast<std::uint64_t>(i)));
    ++stream;
    return tensor;
  };
  Tensor const q = random(one.batch, 1, shape.query_heads), k = random(1, shape.keys, shape.kv_heads),
               v = random(1, shape.keys, shape.kv_heads);
  double const bytes = 2.0 * static_cast<double>(one.batch * shape.keys * shape.kv_heads * shape.dim) * sizeof(T);
  // Reading as many bytes as the cache holds also evicts it.
  std::vector<std::byte> const others(static_cast<std::size_t>(std::max(bytes, 64e6)), std::byte{1});
  auto const half = static_cast<Index>(others.size()) / 2;
  int const cores = one.ranks * shape.threads;

  std::vector<double> rates, read_rates, ratios;
  double error = 0, sent = 0;
  annulus::run_ring(one.ranks, [&](annulus::SimulatedRing& ring) {
    annulus::CpuBackend backend{.threads = shape.threads};
    constexpr Index page_rows = annulus::CacheShape{}.page_rows;
    Index const pages = one.batch * annulus::detail::ceil_divide(shape.keys, page_rows * one.ranks) + one.batch;
    annulus::KvCache<T> cache(ring, backend,
                              {.kv_heads = shape.kv_heads,
                               .head_dim = shape.dim,
                               .value_dim = shape.dim,
                               .pages = one.scattered ? 2 * pages : pages});
    annulus::CachedAttention attention(ring, backend, {.mask = annulus::causal(), .checked = false});
    if (one.scattered) occupy_every_second_page(cache, attention, Tensor(random(1, 1, shape.kv_heads)));
    std::vector<Index> sequences;
    for (Index b = 0; b < one.batch; ++b) {
      sequences.push_back(cache.create());
      attention.append(cache, std::array{sequences.back()}, k, v);
    }
    Tensor output(one.batch, 1, shape.query_heads, shape.dim);
    Eigen::Tensor<A, 3, Eigen::RowMajor> lse(one.batch, shape.query_heads, 1);
    auto const call = [&] { attention.decode_into(cache, sequences, q, output, lse); };
    auto const synchronize = [&] {
      std::byte const mine{};
      std::vector<std::byte> all(static_cast<std::size_t>(ring.size()));
      ring.all_gather({&mine, 1}, all);
    };
    call();
    if (ring.rank() == 0) {
      error = error_of(shape, q.data(), k.data(), v.data(), output.data());
      sent = static_cast<double>(attention.merge_plan().bytes_sent(0));
    }
    // Rank 0 decides how often, and measures.
    bool more = true;
    while (true) {
      double reading = 0;
      if (ring.rank() == 0) {
        more = state.KeepRunning();
        if (more)
          reading = seconds_of_reading(others.data(), others.data() + half, half, cores) * bytes /
                    static_cast<double>(others.size());
      }
      double continues = more ? 1 : 0;
      if (ring.rank() != 0) continues = 0;
      annulus::all_reduce(ring, annulus::TensorView<double, 1>(&continues, {1}));
      if (continues == 0) break;
      synchronize();
      double const seconds = elapsed_in([&] {
                               call();
                               if (one.ranks > 1) synchronize();
                             }).seconds(cores);
      if (ring.rank() != 0) continue;
      state.SetIterationTime(seconds);
      rates.push_back(bytes / seconds);
      read_rates.push_back(bytes / reading);
      ratios.push_back(reading / seconds);
    }
  });
  double const bound = sizeof(T) == 8 ? 1e-13 : sizeof(T) == 4 ? 2e-6 : 8e-3;
  if (!(error <= bound)) return fail(state, "the error is " + two_digits(error));
  state.counters["GB/s"] = median(rates) * 1e-9;
  state.counters["read_GB/s"] = median(read_rates) * 1e-9;
  state.counters["read_%"] = median(ratios) * 100;
  state.counters["sent_B"] = sent;
  state.counters["error"] = error;
}

void register_cases(bool tiny) {
  auto const add = [&]<class T>(T, std::string const& element, CacheCase const& one) {
    DecodeCase const& shape = one.shape;
    std::string const name = "cache/" + element + "/heads:" + std::to_string(shape.query_heads) + ":" +
                             std::to_string(shape.kv_heads) + "/batch:" + std::to_string(one.batch) +
                             "/keys:" + std::to_string(shape.keys) + (one.scattered ? "/scattered" : "/adjacent") +
                             "/ranks:" + std::to_string(one.ranks) + "/threads:" + std::to_string(shape.threads);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
      decode<T>(state, one);
    })->UseManualTime();
  };
  auto const add_types = [&](CacheCase const& one) {
    add(float(), "float32", one);
    add(Eigen::bfloat16(), "bfloat16", one);
  };
  int const cores = annulus::default_threads();
  Index const keys = tiny ? 300 : 65536;
  auto const shape = [&](Index kv_heads, Index length, int threads) {
    return DecodeCase{1, 8, kv_heads, length, 128, threads};
  };
  std::vector<int> thread_counts{1};
  if (cores > 1) thread_counts.push_back(cores);
  for (int threads : thread_counts) {
    for (bool scattered : {false, true}) add_types({shape(8, keys, threads), 1, scattered, 1});
    add_types({shape(1, tiny ? 100 : 8192, threads), 16, false, 1});
  }
  if (cores > 1) add_types({shape(8, keys, 1), 1, false, cores});
}

}  // namespace
}  // namespace annulus_bench

int main(int argc, char** argv) {
  using namespace annulus_bench;
  register_cases(take_option(argc, argv, "cases", "table") == "tiny");
  return run_benchmarks(argc, argv);
}
