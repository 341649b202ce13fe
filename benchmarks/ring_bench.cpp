// What a ring costs beside one rank: the same attention on 1, 2, 4 and 8 simulated ranks, causal zigzag and full
// contiguous, reference backend. Each case checks its result against one rank before it is timed.
//
//   speedup_over_one_rank  every simulated rank is a thread; ranks beyond the cores take turns
//   GFLOP/s                4 * pairs * dim forward, 10 * pairs * dim backward, per head

#include <annulus/annulus.hpp>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
constexpr Eigen::Index tokens = 2048, heads = 2, dim = 64;

struct Operands {
  Tensor q{1, tokens, heads, dim}, k{1, tokens, heads, dim}, v{1, tokens, heads, dim}, dout{1, tokens, heads, dim};
  Operands() {
    // Centred, as activations are: with positive values the gradients would be small differences of large terms.
    for (Tensor* tensor : {&q, &k, &v, &dout}) *tensor = (tensor->random() - 0.5f).eval();
  }
};

annulus::Options options_for(bool causal) {
  if (causal) return {.mask = annulus::causal(), .sharding = annulus::Zigzag{}};
  return {};
}

/// Seconds of the slowest rank, and output and dq in global order.
struct Run {
  double forward = 0, backward = 0;
  Tensor output{1, tokens, heads, dim}, dq{1, tokens, heads, dim};
};

Run run(Operands const& x, int ranks, bool causal) {
  annulus::Options const options = options_for(causal);
  Run result;
  auto const times = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    auto const shard = [&](Tensor const& tensor) { return annulus::scatter(tensor, options.sharding, ring.rank(), ranks); };
    Tensor const q = shard(x.q), k = shard(x.k), v = shard(x.v), dout = shard(x.dout);
    annulus::ReferenceBackend backend;
    annulus::RingAttention attention(ring, backend, options);
    auto const begin = std::chrono::steady_clock::now();
    auto const forward = attention.forward(q, k, v);
    auto const middle = std::chrono::steady_clock::now();
    auto const gradients = attention.backward(dout, forward, q, k, v);
    auto const end = std::chrono::steady_clock::now();
    annulus::gather(forward.output, options.sharding, ring.rank(), ranks, result.output);
    annulus::gather(gradients.dq, options.sharding, ring.rank(), ranks, result.dq);
    return std::pair{std::chrono::duration<double>(middle - begin).count(),
                     std::chrono::duration<double>(end - middle).count()};
  });
  for (auto const& [forward, backward] : times) {
    result.forward = std::max(result.forward, forward);
    result.backward = std::max(result.backward, backward);
  }
  return result;
}

double relative_difference(Tensor const& a, Tensor const& b) {
  double difference = 0, size = 0;
  for (Eigen::Index i = 0; i < a.size(); ++i) {
    difference += std::pow(a.data()[i] - b.data()[i], 2);
    size += std::pow(b.data()[i], 2);
  }
  return std::sqrt(difference / size);
}

void ring(benchmark::State& state) {
  static Operands const operands;
  int const ranks = static_cast<int>(state.range(0));
  bool const causal = state.range(1) != 0;
  static std::map<bool, std::vector<Run>> alone;
  auto& baseline = alone[causal];
  if (baseline.empty())
    for (int i = 0; i < 3; ++i) baseline.push_back(run(operands, 1, causal));
  auto const median = [](std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
  };

  constexpr double bound = 4e-6;  // both sides may be 2e-6 off
  Run const checked = run(operands, ranks, causal);
  if (relative_difference(checked.output, baseline[0].output) > bound || relative_difference(checked.dq, baseline[0].dq) > bound) {
    state.SkipWithError("the ring's result differs from that of one rank");
    return;
  }
  std::vector<double> forward, backward;
  for (auto _ : state) {
    Run const timed = run(operands, ranks, causal);
    forward.push_back(timed.forward);
    backward.push_back(timed.backward);
    state.SetIterationTime(timed.forward + timed.backward);
  }
  std::vector<double> forward_alone, backward_alone;
  for (Run const& one : baseline) {
    forward_alone.push_back(one.forward);
    backward_alone.push_back(one.backward);
  }
  double const pairs = static_cast<double>(tokens) * tokens * (causal ? 0.5 : 1) * heads;
  state.counters["forward_GFLOP/s"] = 4 * pairs * dim / median(forward) * 1e-9;
  state.counters["backward_GFLOP/s"] = 10 * pairs * dim / median(backward) * 1e-9;
  state.counters["speedup_over_one_rank"] =
      (median(forward_alone) + median(backward_alone)) / (median(forward) + median(backward));
}

BENCHMARK(ring)->ArgNames({"ranks", "causal"})->ArgsProduct({{1, 2, 4, 8}, {0, 1}})->UseManualTime()->Iterations(3)->Unit(
    benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
