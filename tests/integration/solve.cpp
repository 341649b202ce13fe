// Solver that the tests of this folder share.

#include "integration/solve.hpp"

#include <annulus/annulus.hpp>

namespace annulus_test {

namespace {

template <class T, class Backend>
RingResult solve_rank(RingProblem const& problem, annulus::SimulatedRing& ring, Backend& backend) {
  return problem.dense.predicate ? run_rank<T, HostPlacement>(problem, ring, backend, problem.dense.predicate)
                                 : run_rank<T, HostPlacement>(problem, ring, backend);
}

}  // namespace

template <class T>
std::vector<RingResult> solve_by_rank(RingProblem const& problem) {
  return annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    return with_asked_backend([&](auto& backend) { return solve_rank<T>(problem, ring, backend); });
  });
}

template std::vector<RingResult> solve_by_rank<double>(RingProblem const&);
template std::vector<RingResult> solve_by_rank<float>(RingProblem const&);
template std::vector<RingResult> solve_by_rank<Eigen::half>(RingProblem const&);
template std::vector<RingResult> solve_by_rank<Eigen::bfloat16>(RingProblem const&);

std::vector<RingResult> solve_with_sums_in_double(RingProblem const& problem) {
  return annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    annulus::DoubleReferenceBackend backend;
    return solve_rank<float>(problem, ring, backend);
  });
}

}  // namespace annulus_test
