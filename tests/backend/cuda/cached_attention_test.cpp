// Calls on a cache in the memory of a GPU, and of an emulated one (tests/emulated_cuda), against dense attention in
// double.

#include <string>

#include "annulus/comm/simulated_ring.hpp"
#include "attention/cache/cached_sequences.hpp"
#include "backend/cuda/placed_cached_attention.hpp"
#include "support/catch.hpp"

using namespace annulus_test;

namespace {

template <class T>
void check(CachedCase const& one, int ranks) {
  INFO("case " << one.seed << ", " << ranks << " ranks");
  auto const run = [&](annulus::SimulatedRing& host) -> std::string {
    using Ring = StagedCudaRing<annulus::SimulatedRing>;
    Ring ring(host);
    annulus::CudaBackend backend;
    CachedRun<T, Ring, annulus::CudaBackend, annulus::EveryPair, PlacedCachedAttention<Ring>> calls(ring, backend, one);
    std::string const complaint = calls.run();
    return complaint.empty() && calls.compared_rows() == 0 ? "no row was compared" : complaint;
  };
  for (std::string const& complaint : annulus::run_ring(ranks, run)) CHECK(complaint == "");
}

}  // namespace

TEST_CASE("CudaBackend: random calls on a cache give what dense attention in double gives", "[backend][cuda][cache]") {
  for (CachedCase one : cached_cases())
    for (int ranks : {1, 3}) {
      one.calls = 60;
      check<float>(one, ranks);
    }
}

TEST_CASE("CudaBackend: the same for other element types", "[backend][cuda][cache]") {
  for (CachedCase one : cached_cases()) {
    one.calls = 30;
    one.shape.kv_heads = 1;
    one.shape.head_dim = one.shape.value_dim = 64;
    one.options.softmax_scale.reset();
    one.tolerance = 2e-2;
    check<Eigen::bfloat16>(one, 2);
    one.tolerance = 1e-12;
    check<double>(one, 1);
  }
}
