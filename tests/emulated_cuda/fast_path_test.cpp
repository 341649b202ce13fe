// Which steps CudaBackend hands to the Hopper kernels, and the results of both passes.

#include "backend/cuda/implementation.hpp"
#include "emulated_cuda/hopper_steps.hpp"
#include "support/ring_run.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;

namespace {

RingProblem problem_of(std::int64_t head_dim) {
  RingProblem problem =
      small_ring_problem({.query_heads = 2, .kv_heads = 1, .query_length = 70, .head_dim = head_dim}, 1);
  problem.dense.causal = true;
  return problem;
}

/// The steps of both passes that the kernels computed. Checks the results.
template <class T>
int fast_steps(RingProblem problem) {
  settle(problem);
  round_operands<T>(problem);
  hopper_steps = 0;
  // A call, whose steps open and close their sums.
  auto const run = [&](annulus::SimulatedRing& host) {
    auto ring = CudaImplementation{}.ring(host);
    annulus::CudaBackend backend;
    return run_rank<T, CudaPlacement>(problem, ring, backend);
  };
  RingResult const result = assemble(problem, annulus::run_ring(1, run));
  if constexpr (sizeof(T) == 2)
    CHECK(ThreeWayJudge<T>().complaint(problem, result) == "");
  else
    CHECK(judge(problem, result, backend_cases::bounds_of<T>).complaint == "");
  return hopper_steps;
}

}  // namespace

TEMPLATE_TEST_CASE("the Hopper kernels take steps of 16-bit elements", "[cuda][fast]", Eigen::half, Eigen::bfloat16) {
  RingProblem problem = problem_of(64);
  SECTION("causal") {}
  SECTION("full") { problem.dense.causal = false; }
  SECTION("window and sink logits") {
    problem.dense.window_left = 20;
    give_sinks(problem, 2);
  }
  SECTION("documents of consecutive rows") {
    std::vector<int> ids(70, 1);
    std::fill_n(ids.begin() + 30, 40, 2);
    give_documents(problem, ids);
  }
  CHECK(fast_steps<TestType>(problem) > 0);
}

TEST_CASE("steps that the Hopper kernels do not take", "[cuda][fast]") {
  RingProblem problem = problem_of(64);
  SECTION("another head_dim") { problem = problem_of(72); }
  SECTION("sink tokens") {
    problem.dense.window_left = 20;
    problem.dense.sink_tokens = 3;
  }
  SECTION("a soft cap") { problem.dense.logit_softcap = 2; }
  SECTION("dropout") { problem.dense.dropout_probability = 0.3; }
  SECTION("a bias") { give_bias(problem, 1, 1); }
  SECTION("a boolean mask") { give_mask(problem, 1, 2); }
  SECTION("documents whose rows are apart") {
    std::vector<int> ids(70, 1);
    std::fill_n(ids.begin() + 30, 20, 2);
    give_documents(problem, ids);
  }
  CHECK(fast_steps<Eigen::bfloat16>(problem) == 0);
  CHECK(fast_steps<float>(problem_of(64)) == 0);
}
