// Benchmark of the fixed cost of a call: a repeated forward pass over one token per rank, with one head of dimension 4.
// Ranks compare their arguments, keep a flight record and look up their plan; with checks (Options::checked) they also
// exchange checksums and agree on the end of the call.
//
//   self                  one rank, no exchange
//   simulated/ranks:N     threads that wait for each other; most of the time is spent on waking up

#include <benchmark/benchmark.h>
#include <annulus/annulus.hpp>

#include <string>

#include "bench_main.hpp"

namespace annulus_bench {
namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

/// Runs the calls of one rank for as long as more() returns true.
template <class Ring, class More>
void call_repeatedly(Ring& ring, bool checked, More more) {
  Tensor q(1, 1, 1, 4), k(1, 1, 1, 4), v(1, 1, 1, 4), output(1, 1, 1, 4);
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, 1, 1);
  q.setConstant(1), k.setConstant(1), v.setConstant(1);
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend, {.checked = checked});
  attention.forward_into(q, k, v, output, lse);
  while (more()) attention.forward_into(q, k, v, output, lse);
}

void self(benchmark::State& state, bool checked) {
  annulus::SelfRing ring;
  call_repeatedly(ring, checked, [&] { return state.KeepRunning(); });
}

void simulated(benchmark::State& state, int ranks, bool checked) {
  annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    if (ring.rank() == 0) return call_repeatedly(ring, checked, [&] { return state.KeepRunning(); });
    benchmark::IterationCount left = state.max_iterations;
    call_repeatedly(ring, checked, [&] { return left-- > 0; });
  });
}

}  // namespace
}  // namespace annulus_bench

int main(int argc, char** argv) {
  using namespace annulus_bench;
  for (bool checked : {false, true}) {
    std::string const checks = checked ? "/checked" : "";
    benchmark::RegisterBenchmark(("self" + checks).c_str(), [=](benchmark::State& state) { self(state, checked); })
        ->UseRealTime();
    for (int ranks : {1, 2, 4})
      benchmark::RegisterBenchmark(("simulated/ranks:" + std::to_string(ranks) + checks).c_str(),
                                   [=](benchmark::State& state) { simulated(state, ranks, checked); })
          ->UseRealTime();
  }
  return run_benchmarks(argc, argv);
}
