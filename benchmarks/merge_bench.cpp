// Benchmark of merging partial results: running states by the CPU backend (as in a ring whose queries rotate), and
// normalised rows by the public rule, each relative to a plain copy of as many bytes, measured in alternation. Results
// are compared with a merge in double before they are timed.
//
//   --cases=table   4 MiB to 256 MiB (the default)     --cases=tiny   negligible time
//
//   GB/s        bytes read and written: both accumulators read, one written
//   copy_GB/s   bytes read and written by memcpy
//   copy_%      the ratio of the two, for each pair of measurements

#include <benchmark/benchmark.h>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/numerics/softmax.hpp>

#include <cmath>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "attention/operands.hpp"
#include "bench_main.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

constexpr Index heads = 4, dim = 64;

/// A partial result: values [1, queries, heads, dim], and one or two statistics [1, heads, queries].
struct Part {
  FloatTensor values;
  Eigen::Tensor<float, 3, Eigen::RowMajor> maximum, sum;

  Part(Index queries, std::uint64_t stream)
      : values(1, queries, heads, dim), maximum(1, heads, queries), sum(1, heads, queries) {
    for (Index i = 0; i < values.size(); ++i) values.data()[i] = value_at(stream, static_cast<std::uint64_t>(i));
    for (Index i = 0; i < maximum.size(); ++i) {
      maximum.data()[i] = value_at(stream + 1, static_cast<std::uint64_t>(i));
      sum.data()[i] = 2 + value_at(stream + 2, static_cast<std::uint64_t>(i));
    }
  }

  annulus::RunningState<float, annulus::HostMemory> state() {
    return {annulus::view_of(values), annulus::view_of(maximum), annulus::view_of(sum)};
  }
};

/// Measures merge(into, from) on parts of `queries` rows per head. weights_of(into, from, head, row) are the weights of
/// both, in double.
template <class Merge, class Weights>
void measure(benchmark::State& state, Index queries, Merge const& merge, Weights const& weights_of) {
  Part const first(queries, 0);
  Part into = first, from(queries, 3);
  merge(into, from);
  double difference = 0, size = 0;
  for (Index i = 0; i < queries; ++i)
    for (Index h = 0; h < heads; ++h) {
      auto const [own, other] = weights_of(first, from, h, i);
      for (Index d = 0; d < dim; ++d) {
        double const exact =
            own * static_cast<double>(first.values(0, i, h, d)) + other * static_cast<double>(from.values(0, i, h, d));
        difference += std::pow(exact - static_cast<double>(into.values(0, i, h, d)), 2);
        size += std::pow(exact, 2);
      }
    }
  // An exponential, a product and a sum, each within a few roundings.
  constexpr double bound = 8 * 0x1p-24;
  double const error = std::sqrt(difference / size);
  if (!(error <= bound)) {
    fail(state, "merged rows have a relative error of " + two_digits(error));
    return;
  }
  auto const bytes = static_cast<double>(into.values.size()) * sizeof(float);
  std::vector<char> source(static_cast<std::size_t>(bytes), 1), target(static_cast<std::size_t>(bytes), 2);
  std::vector<double> speeds, copies, shares;
  for (auto _ : state) {
    double const copy = elapsed_in([&] {
                          std::memcpy(target.data(), source.data(), source.size());
                          benchmark::DoNotOptimize(target.data());
                          benchmark::ClobberMemory();
                        }).cpu;
    double const seconds = elapsed_in([&] { merge(into, from); }).cpu;
    speeds.push_back(3 * bytes / seconds);
    copies.push_back(2 * bytes / copy);
    shares.push_back(speeds.back() / copies.back());
    state.SetIterationTime(seconds);
  }
  state.counters["GB/s"] = median(speeds) * 1e-9;
  state.counters["copy_GB/s"] = median(copies) * 1e-9;
  state.counters["copy_%"] = 100 * median(shares);
  state.counters["error"] = error;
}

void running_states(benchmark::State& state, Index queries) {
  annulus::CpuBackend backend{.threads = 1};
  measure(
      state, queries, [&](Part& into, Part& from) { backend.merge(into.state(), from.state()); },
      [](Part const& a, Part const& b, Index h, Index i) {
        double const x = a.maximum(0, h, i), y = b.maximum(0, h, i), maximum = std::fmax(x, y);
        return std::pair{std::exp(x - maximum), std::exp(y - maximum)};
      });
}

/// Merges normalised rows whose lse is `maximum`.
void normalised_rows(benchmark::State& state, Index queries) {
  measure(
      state, queries,
      [&](Part& into, Part& from) {
        for (Index i = 0; i < queries; ++i)
          for (Index h = 0; h < heads; ++h)
            annulus::merge_rows<float, float>(
                {&into.values(0, i, h, 0), static_cast<std::size_t>(dim)}, into.maximum(0, h, i),
                {&from.values(0, i, h, 0), static_cast<std::size_t>(dim)}, from.maximum(0, h, i));
      },
      [](Part const& a, Part const& b, Index h, Index i) {
        double const x = std::exp(static_cast<double>(a.maximum(0, h, i))),
                     y = std::exp(static_cast<double>(b.maximum(0, h, i)));
        return std::pair{x / (x + y), y / (x + y)};
      });
}

void add(char const* name, void (*function)(benchmark::State&, Index), Index queries) {
  benchmark::RegisterBenchmark(
      (std::string(name) + "/KiB:" + std::to_string(queries * heads * dim * static_cast<Index>(sizeof(float)) / 1024))
          .c_str(),
      [=](benchmark::State& state) { function(state, queries); })
      ->UseManualTime();
}

}  // namespace
}  // namespace annulus_bench

int main(int argc, char** argv) {
  using namespace annulus_bench;
  std::string const cases = take_option(argc, argv, "cases", "table");
  if (cases != "table" && cases != "tiny") {
    std::cerr << "--cases=" << cases << " is unknown; accepted: table, tiny\n";
    return 2;
  }
  for (Index queries : cases == "tiny" ? std::vector<Index>{7} : std::vector<Index>{4096, 32768, 262144}) {
    add("running_states", running_states, queries);
    add("normalised_rows", normalised_rows, queries);
  }
  return run_benchmarks(argc, argv);
}
