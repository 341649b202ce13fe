// The adapters of ejkernel and nkilib with CudaBackend, on rings of GPU memory, against the oracle.

#include <annulus/annulus.hpp>
#include <annulus/backend/cuda/cuda.hpp>
#include <annulus/tensor/cuda/device_tensor.hpp>

#include "interop/ejkernel_run.hpp"
#include "interop/nkilib_run.hpp"
#include "support/catch.hpp"
#include "support/cuda_memory.hpp"
#include "support/judge.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;

namespace {

/// Runs all ranks on a ring of GPU memory; results in global order. run(ring, backend): one rank.
template <class Run>
RingResult run_on_gpu(RingProblem const& problem, Run&& run) {
  return assemble(problem, annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& simulated) {
                    StagedCudaRing ring(simulated);
                    annulus::CudaBackend backend;
                    return run(ring, backend);
                  }));
}

}  // namespace

TEST_CASE("ejkernel with CudaBackend", "[cuda][ejkernel]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 9, .head_dim = 3},
                                           GENERATE(1, 2), annulus::Contiguous{});
  give_sinks(problem, 3);
  settle(problem);
  round_operands<float>(problem);
  bool const shared = GENERATE(false, true);
  auto& sinks = problem.dense.sinks->values;
  if (shared)
    for (std::size_t i = 3; i < sinks.size(); ++i) sinks[i] = sinks[i - 3];
  RingResult result = run_on_gpu(problem, [&](auto& ring, auto& backend) {
    return run_ejkernel_rank<float, CudaPlacement>(problem, ring, backend, annulus::EveryPair{}, shared);
  });
  if (shared) {
    auto const exact = oracle_backward(problem.dense, problem.dout).dsinks;
    for (std::size_t n = 0; n < 3; ++n)
      CHECK(result.dsinks[n] == Approx(exact[n] + exact[n + 3] + exact[n + 6] + exact[n + 9]).margin(1e-5));
    result.dsinks = exact;
  }
  CHECK(judge(problem, result, float_bounds).complaint == "");
}

TEST_CASE("nkilib with CudaBackend: packed documents, whose padding is masked", "[cuda][nkilib]") {
  int const ranks = GENERATE(1, 2);
  Index const n = ranks;
  NkilibCall const call{.causal = true, .striped = true, .tp_q = true, .documents = {{2 * n, 9 * n}, {12 * n, 30 * n}}};
  RingProblem problem = nkilib_problem(ranks, 33, call, {.query_heads = 4, .kv_heads = 2, .head_dim = 5});
  round_operands<float>(problem);
  auto const seen = run_on_gpu(problem, [&](auto& ring, auto& backend) {
    return run_nkilib_rank<float, CudaPlacement>(problem, ring, backend, call);
  });
  CHECK(judge(problem, with_masked_rows(problem, seen), float_bounds).complaint == "");
}

TEST_CASE("nkilib's unpermute with CudaBackend", "[cuda][nkilib]") {
  auto const first = annulus::run_ring(2, [&](annulus::SimulatedRing& simulated) {
    StagedCudaRing ring(simulated);
    annulus::CudaBackend backend;
    Eigen::Tensor<float, 3> striped(1, 4, 1);
    for (Index i = 0; i < 4; ++i) striped(0, i, 0) = static_cast<float>(2 * i + ring.rank());
    auto const x = annulus::to_device(striped);
    auto const y = annulus::to_host(annulus::nkilib::ring_attention_unpermute(ring, backend, x, {.num_workers = 2}));
    return std::vector<float>(y.data(), y.data() + y.size());
  });
  CHECK(first == std::vector<std::vector<float>>{{0, 1, 2, 3}, {4, 5, 6, 7}});
}
