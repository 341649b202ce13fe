// The ejkernel adapter on tensors of GPUs: the bits of host tensors, forward and backward.

#include <cstddef>
#include <string>

#include "annulus/comm/peer_ring.hpp"
#include "interop/ejkernel_run.hpp"
#include "support/catch.hpp"
#include "support/device_placement.hpp"
#include "support/host_function_backend.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;

namespace {

/// Names of the results on GPUs whose bits differ from those in host memory, of any rank.
template <class T>
std::string different_on_gpus(RingProblem const& problem, bool shared_sinks) {
  auto const expected = annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    return run_ejkernel_rank<T>(problem, ring, backend, annulus::EveryPair{}, shared_sinks);
  });
  auto const seen = annulus::run_peer_ring(gpus_of(problem.ranks, 1), [&](annulus::PeerRing& ring) {
    HostFunctionBackend<> backend(-1);
    return run_ejkernel_rank<T, DevicePlacement>(problem, ring, backend, annulus::EveryPair{}, shared_sinks);
  });
  std::string different;
  for (std::size_t rank = 0; rank < seen.size(); ++rank) different += different_results(seen[rank], expected[rank]);
  return different;
}

}  // namespace

TEST_CASE("ejkernel on tensors of GPUs: the bits of host tensors, with random options", "[ejkernel][peer]") {
  int const ranks = GENERATE(1, 2, 3);
  for (std::uint64_t seed = 9'200'000; seed < 9'200'020; ++seed) {
    RingProblem problem = random_ejkernel_problem(seed, ranks);
    round_operands<float>(problem);
    INFO(problem.text);
    CHECK(different_on_gpus<float>(problem, false) == "");
  }
}

TEST_CASE("ejkernel on tensors of GPUs: the gradient of shared sink logits sums over the heads", "[ejkernel][peer]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 9, .head_dim = 3},
                                           GENERATE(1, 2), annulus::Contiguous{});
  give_sinks(problem, 3);
  settle(problem);
  CHECK(different_on_gpus<double>(problem, true) == "");
}
