// Benchmark of a ring relative to one rank that does the same work on the same cores: simulated ranks (threads) with
// the CPU backend. Before anything is timed, the ring's results are compared with those of one rank, and sampled rows
// of these with dense attention in double.
//
//   --cases=table   8 ranks, 16384 tokens (the default)     --cases=tiny   negligible time
//
//   speed_of_one_rank   speed relative to one rank; 1: no overhead
//   exposed_%           share of the ring's time that is saved without communication; about 2 % is noise
//   cpu_of_one_rank_%   CPU time of one rank over that of the ring; exposed_cpu_% is as above, by CPU time. Other load
//                       on the machine has little effect on both; they exclude the time in which a core is idle
//   balance_%           work over the capacity of the ranks if each step takes as long as its busiest rank
//
// All are medians over rounds of one rank, the ring, and the ring without transfers.

#include <benchmark/benchmark.h>
#include <annulus/comm/self.hpp>
#include <annulus/comm/simulated_ring.hpp>

#include <algorithm>
#include <iostream>
#include <optional>
#include <string>

#include "attention/sampled_check.hpp"
#include "bench_main.hpp"
#include "ring/ring_rank.hpp"
#include "ring/ring_report.hpp"
#include "timing.hpp"

namespace annulus_bench {
namespace {

/// Barrier of all ranks.
void meet(annulus::SimulatedRing& ring) {
  std::vector<std::byte> all(static_cast<std::size_t>(ring.size()));
  ring.all_gather(std::span(all).first(1), all);
}

double forward_error(RingCase const& c, Operands const& operands, RingRank<annulus::SelfRing> const& alone) {
  FloatTensor const output = alone.results()[0];
  return sampled_rows(c.attention, operands).error(Pass::forward, [&](Quantity quantity, Index head, Index row) {
    std::vector<double> values;
    if (quantity == Quantity::lse) return std::vector{static_cast<double>(alone.lse(head, row))};
    for (Index d = 0; d < output.dimension(3); ++d) values.push_back(static_cast<double>(output(0, row, head, d)));
    return values;
  });
}

void simulated_ring(benchmark::State& state, RingCase const& c, int ranks) {
  Operands const operands(c.attention);
  annulus::SelfRing self;
  RingRank<annulus::SelfRing> alone(self, c, operands);
  RingResults const expected = alone.results();
  RingResults joined(expected.size(), FloatTensor(operands.q.dimensions()));
  RingReport report;
  std::optional<std::string> complaint;
  if (c.attention.pass == Pass::forward)
    if (double const error = forward_error(c, operands, alone); !(error <= error_bound(c.attention)))
      complaint = "sampled rows of one rank have a relative error of " + two_digits(error);

  annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    RingRank<annulus::SimulatedRing> rank(ring, c, operands);
    RingResults const results = rank.results();
    for (std::size_t i = 0; i < results.size(); ++i)
      annulus::gather(results[i], c.sharding, ring.rank(), ranks, joined[i]);
    meet(ring);
    bool const leads = ring.rank() == 0;
    for (std::size_t i = 0; leads && i < joined.size(); ++i)
      if (!(relative_difference(joined[i], expected[i]) <= ring_error_bound))
        complaint = "the ring differs from one rank";
    meet(ring);
    if (complaint) return;
    auto const timed = [&](auto&& work) {
      meet(ring);
      Stopwatch const stopwatch;
      work();
      meet(ring);
      return stopwatch.elapsed();
    };
    auto const round = [&] {
      Elapsed const one = timed([&] {
        if (leads) alone.run();
      });
      Elapsed const together = timed([&] { rank.run(); });
      Elapsed const without = timed([&] { rank.run_without_transfers(); });
      if (!leads) return;
      report.add_round(one, together, without);
      state.SetIterationTime(together.wall);
    };
    if (leads)
      while (state.KeepRunning()) round();
    else
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) round();
    if (leads) report.write(state, c, rank.plan());
  });
  if (complaint) fail(state, *complaint);
}

void add(RingCase const& c, int ranks, int rounds) {
  benchmark::RegisterBenchmark(("simulated/ranks:" + std::to_string(ranks) + "/" + c.name()).c_str(),
                               [=](benchmark::State& state) { simulated_ring(state, c, ranks); })
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
                       RingCase{{.mask = MaskKind::causal}, annulus::Zigzag{}, "zigzag"},
                       RingCase{{.mask = MaskKind::causal}, annulus::Striped{}, "striped"},
                       RingCase{{.mask = MaskKind::causal}, annulus::Contiguous{}, "contiguous"}}) {
      c.attention.pass = pass;
      c.attention.tokens = tiny ? 128 : 16384;
      if (tiny) c.attention.head_dim = 16;
      c.attention.threads = 0;
      add(c, tiny ? 3 : 8, tiny ? 1 : 3);
    }
  return run_benchmarks(argc, argv);
}
