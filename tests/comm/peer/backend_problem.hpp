#pragma once
// The problem of the tests of CudaBackend on rings of GPUs.

#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

namespace annulus_test {

/// A causal problem with grouped heads, in uneven shards.
inline RingProblem backend_problem(int ranks, annulus::Rotation rotation, annulus::Schedule schedule) {
  RingProblem problem =
      small_ring_problem({.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 64 * ranks + 5, .head_dim = 32},
                         ranks, annulus::Contiguous{}, rotation);
  problem.dense.causal = true;
  give_sinks(problem, 1);
  problem.options.schedule = schedule;
  settle(problem);
  round_operands<float>(problem);
  return problem;
}

}  // namespace annulus_test
