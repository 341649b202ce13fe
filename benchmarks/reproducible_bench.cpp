// Benchmark of reproducible calls relative to the same calls without the option, on simulated ranks (threads) with the
// CPU backend, and on a cache of one rank. Before a ring is timed, its results are compared, bit by bit, with those of
// one rank.
//
//   --cases=table   8 ranks, 16384 tokens (the default)     --cases=tiny   negligible time
//
//   speed_%       time of the call without the option over that of the reproducible one
//   cpu_speed_%   the same by CPU time, on which other load on the machine has little effect
//   bytes_%       bytes sent relative to the call without the option
//
// All are medians over rounds of both calls.

#include <benchmark/benchmark.h>
#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/comm/self.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <annulus/sharding/scatter_gather.hpp>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "attention/operands.hpp"
#include "bench_main.hpp"
#include "reproducible_serving.hpp"
#include "ring/ring_case.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

/// A rank with its shards, with or without the option.
template <class Ring>
class Caller {
 public:
  Caller(Ring& ring, RingCase const& c, Operands const& global, bool reproducible)
      : case_(c),
        q_(shard(ring, global.q)),
        k_(shard(ring, global.k)),
        v_(shard(ring, global.v)),
        dout_(shard(ring, global.dout)),
        output_(q_.dimensions()),
        dq_(q_.dimensions()),
        dk_(k_.dimensions()),
        dv_(v_.dimensions()),
        lse_(1, c.attention.heads, q_.dimension(1)),
        backend_{.threads = c.attention.threads},
        attention_(ring, backend_, options(reproducible)) {
    attention_.forward_into(q_, k_, v_, output_, lse_);
    run();
  }

  void run() {
    if (case_.attention.pass == Pass::forward)
      attention_.forward_into(q_, k_, v_, output_, lse_);
    else
      attention_.backward_into(dout_, output_, lse_, q_, k_, v_,
                               annulus::GradientViews<float, annulus::HostMemory>{
                                   annulus::view_of(dq_), annulus::view_of(dk_), annulus::view_of(dv_)});
  }
  std::vector<FloatTensor> results() const {
    return case_.attention.pass == Pass::forward ? std::vector{output_} : std::vector{dq_, dk_, dv_};
  }
  annulus::RingPlan const& plan() const { return *attention_.plan(case_.attention.pass); }

 private:
  annulus::Options options(bool reproducible) const {
    annulus::Options options{
        .mask = mask_of(case_.attention.mask), .sharding = case_.sharding, .reproducible = reproducible};
    if (case_.attention.tokens < 1024) options.reproducible_leaf = 8;
    return options;
  }
  FloatTensor shard(Ring& ring, FloatTensor const& tensor) const {
    return annulus::scatter(tensor, case_.sharding, ring.rank(), ring.size());
  }

  RingCase case_;
  FloatTensor q_, k_, v_, dout_, output_, dq_, dk_, dv_;
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse_;
  annulus::CpuBackend backend_;
  annulus::RingAttention<Ring, annulus::CpuBackend> attention_;
};

/// Barrier of all ranks.
void meet(annulus::SimulatedRing& ring) {
  std::vector<std::byte> all(static_cast<std::size_t>(ring.size()));
  ring.all_gather(std::span(all).first(1), all);
}

bool same_bits(FloatTensor const& a, FloatTensor const& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), sizeof(float) * static_cast<std::size_t>(a.size())) == 0;
}

void reproducible(benchmark::State& state, RingCase const& c, int ranks) {
  Operands const operands(c.attention);
  annulus::SelfRing self;
  auto const expected = Caller<annulus::SelfRing>(self, c, operands, true).results();
  std::vector<FloatTensor> joined(expected.size(), FloatTensor(operands.q.dimensions()));
  std::vector<double> speeds, cpu_speeds;
  double bytes = 0;
  bool same = true;
  annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    Caller<annulus::SimulatedRing> free(ring, c, operands, false), fixed(ring, c, operands, true);
    auto const results = fixed.results();
    for (std::size_t i = 0; i < results.size(); ++i)
      annulus::gather(results[i], c.sharding, ring.rank(), ranks, joined[i]);
    meet(ring);
    bool const leads = ring.rank() == 0;
    for (std::size_t i = 0; leads && i < joined.size(); ++i) same = same && same_bits(joined[i], expected[i]);
    meet(ring);
    if (!same) return;
    auto const timed = [&](auto& caller) {
      meet(ring);
      Stopwatch const stopwatch;
      caller.run();
      meet(ring);
      return stopwatch.elapsed();
    };
    auto const round = [&] {
      Elapsed const without = timed(free), with = timed(fixed);
      if (!leads) return;
      speeds.push_back(100 * without.wall / with.wall);
      cpu_speeds.push_back(100 * without.cpu / with.cpu);
      state.SetIterationTime(with.wall);
    };
    if (leads)
      while (state.KeepRunning()) round();
    else
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) round();
    if (leads)
      bytes = 100 * static_cast<double>(fixed.plan().total_bytes_sent()) /
              static_cast<double>(free.plan().total_bytes_sent());
  });
  if (!same) return fail(state, "the ring has other bits than one rank");
  state.counters["speed_%"] = median(speeds);
  state.counters["cpu_speed_%"] = median(cpu_speeds);
  state.counters["bytes_%"] = bytes;
}

void serve(benchmark::State& state, ServingCase const& one) {
  ServingCaller free(one, false), fixed(one, true);
  free.run();
  fixed.run();
  std::vector<double> speeds, cpu_speeds;
  while (state.KeepRunning()) {
    Elapsed const without = elapsed_in([&] { free.run(); }), with = elapsed_in([&] { fixed.run(); });
    speeds.push_back(100 * without.wall / with.wall);
    cpu_speeds.push_back(100 * without.cpu / with.cpu);
    state.SetIterationTime(with.wall);
  }
  state.counters["speed_%"] = median(speeds);
  state.counters["cpu_speed_%"] = median(cpu_speeds);
}

void add(ServingCase const& one, int rounds) {
  std::string const name = "reproducible/serving/" + std::string(one.decodes ? "decode" : "prefill") +
                           "/heads:" + std::to_string(one.heads) + "/tokens:" + std::to_string(one.tokens);
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { serve(state, one); })
      ->UseManualTime()
      ->Iterations(rounds)
      ->Unit(benchmark::kMillisecond);
}

void add(RingCase const& c, int ranks, int rounds) {
  benchmark::RegisterBenchmark(("reproducible/ranks:" + std::to_string(ranks) + "/" + c.name()).c_str(),
                               [=](benchmark::State& state) { reproducible(state, c, ranks); })
      ->UseManualTime()
      ->Iterations(rounds)
      ->Unit(benchmark::kMillisecond);
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
  bool const tiny = cases == "tiny";
  for (Pass pass : {Pass::forward, Pass::backward})
    for (RingCase c : {RingCase{{.mask = MaskKind::full}, annulus::Contiguous{}, "contiguous"},
                       RingCase{{.mask = MaskKind::causal}, annulus::Zigzag{}, "zigzag"}}) {
      c.attention.pass = pass;
      c.attention.tokens = tiny ? 128 : 16384;
      c.attention.head_dim = tiny ? 16 : 128;
      c.attention.heads = tiny ? 4 : 2;
      c.attention.threads = 0;
      add(c, tiny ? 4 : 8, tiny ? 1 : 5);
    }
  int const rounds = tiny ? 1 : 5;
  add({.tokens = tiny ? 96 : 16384, .heads = 2, .dim = tiny ? 16 : 128, .chunk = tiny ? 32 : 2048, .decodes = false},
      rounds);
  add({.tokens = tiny ? 96 : 65536, .heads = 8, .dim = tiny ? 16 : 128, .chunk = tiny ? 32 : 2048, .decodes = true},
      9 * rounds);
  return run_benchmarks(argc, argv);
}
