// What a call costs apart from its work: a repeated forward pass over one token a rank, with one head of 4. Ranks compare
// their arguments, keep a flight record and find their plan; with checks (Options::checked) they also exchange checksums
// and agree on the end of the call.
//
//   self                  one rank, no exchange
//   simulated/ranks:N     threads that wait for each other, so that most of the time is that of waking up

#include <benchmark/benchmark.h>
#include <annulus/annulus.hpp>

#include <string>

#include "bench_main.hpp"

namespace annulus_bench {
namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

/// The calls of one rank. more(): whether there is one more.
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
