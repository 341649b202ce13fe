// The nkilib adapter on tensors of GPUs: the bits of host tensors, forward and backward, and unpermute.

#include <cstddef>
#include <string>
#include <vector>

#include "annulus/comm/peer_ring.hpp"
#include "interop/nkilib_run.hpp"
#include "support/catch.hpp"
#include "support/device_placement.hpp"
#include "support/host_function_backend.hpp"

using namespace annulus_test;

namespace {

/// Names of the results on GPUs whose bits differ from those in host memory, of any rank.
template <class T>
std::string different_on_gpus(int ranks, Index s, NkilibCall const& call, NkilibExtents const& extents) {
  RingProblem problem = nkilib_problem(ranks, s, call, extents, static_cast<std::uint64_t>(ranks * 1000 + s));
  round_operands<T>(problem);
  auto const expected = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    return run_nkilib_rank<T>(problem, ring, backend, call);
  });
  auto const seen = annulus::run_peer_ring(gpus_of(ranks, 1), [&](annulus::PeerRing& ring) {
    HostFunctionBackend<> backend(-1);
    return run_nkilib_rank<T, DevicePlacement>(problem, ring, backend, call);
  });
  std::string different;
  for (std::size_t rank = 0; rank < seen.size(); ++rank) different += different_results(seen[rank], expected[rank]);
  return different;
}

constexpr NkilibExtents grouped{.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 5, .value_dim = 4};

}  // namespace

TEST_CASE("nkilib on tensors of GPUs: the bits of host tensors, in every layout", "[nkilib][peer]") {
  int const ranks = GENERATE(1, 2, 3);
  bool const tp_q = GENERATE(false, true), tp_k = GENERATE(false, true), striped = GENERATE(false, true);
  NkilibCall const call{.causal = true, .striped = striped, .tp_q = tp_q, .tp_k = tp_k};
  CHECK(different_on_gpus<float>(ranks, 13, call, grouped) == "");
}

TEST_CASE("nkilib on tensors of GPUs: tiles of 16-bit operands have more rows than partitions", "[nkilib][peer]") {
  CHECK(different_on_gpus<Eigen::bfloat16>(2, 129, {.causal = true}, grouped) == "");
}

TEST_CASE("nkilib on tensors of GPUs: packed documents with padding, whose rows are masked", "[nkilib][peer]") {
  int const ranks = GENERATE(1, 2, 3);
  Index const n = ranks;
  NkilibCall const call{
      .causal = GENERATE(false, true), .striped = true, .documents = {{2 * n, 9 * n}, {12 * n, 30 * n}}};
  CHECK(different_on_gpus<double>(ranks, 33, call, grouped) == "");
}

TEST_CASE("nkilib on tensors of GPUs: unpermute gives every rank its part of the sequence", "[nkilib][peer]") {
  int const ranks = GENERATE(1, 2, 3);
  Index const rows = GENERATE(0, 1, 3) * ranks;
  auto const element = [](Index item, Index position, Index dim) {
    return static_cast<float>(item * 10000 + position * 10 + dim);
  };
  auto const wrong = annulus::run_peer_ring(gpus_of(ranks, 1), [&](annulus::PeerRing& ring) {
    Eigen::Tensor<float, 3> striped(2, rows, 3);
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < rows; ++i)
        for (Index d = 0; d < 3; ++d) striped(b, i, d) = element(b, i * ranks + ring.rank(), d);
    HostFunctionBackend<> backend(-1);
    auto const x = annulus::to_device(striped);
    auto const y =
        annulus::to_host(annulus::nkilib::ring_attention_unpermute(ring, backend, x, {.num_workers = ranks}));
    int count = 0;
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < rows; ++i)
        for (Index d = 0; d < 3; ++d) count += y(b, i, d) != element(b, ring.rank() * rows + i, d);
    return count;
  });
  CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
}
