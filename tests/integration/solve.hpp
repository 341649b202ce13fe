#pragma once
// A ring problem, solved on the simulated ring by the asked backend: the one that the environment variable
// ANNULUS_TEST_BACKEND names (reference or cpu), or else the reference backend. Compiled once for all tests of this folder.

#include <Eigen/Core>
#include <annulus/annulus.hpp>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "support/judge.hpp"
#include "support/small_ring_problem.hpp"

namespace annulus_test {

/// Calls function(backend) with a new backend of the asked kind. What is compared bit by bit with results of
/// solve_by_rank comes from the same backend.
template <class Function>
auto with_asked_backend(Function&& function) {
  char const* const asked = std::getenv("ANNULUS_TEST_BACKEND");
  std::string const name = asked ? asked : "reference";
  if (name == "reference") {
    annulus::ReferenceBackend backend;
    return function(backend);
  }
  if (name == "cpu") {
    annulus::CpuBackend backend;
    return function(backend);
  }
  throw std::invalid_argument("ANNULUS_TEST_BACKEND=" + name + "; accepted: reference, cpu");
}

/// Operands of type T; the problem has been settled and holds numbers of T. The predicate of `dense`, if any, is used.
/// One result a rank.
template <class T>
std::vector<RingResult> solve_by_rank(RingProblem const& problem);

extern template std::vector<RingResult> solve_by_rank<double>(RingProblem const&);
extern template std::vector<RingResult> solve_by_rank<float>(RingProblem const&);
extern template std::vector<RingResult> solve_by_rank<Eigen::half>(RingProblem const&);
extern template std::vector<RingResult> solve_by_rank<Eigen::bfloat16>(RingProblem const&);

/// The same with all sums in double.
std::vector<RingResult> solve_with_sums_in_double(RingProblem const& problem);

/// Settles and rounds the problem, and solves it.
template <class T>
RingResult solve(RingProblem& problem) {
  settle(problem);
  round_operands<T>(problem);
  return assemble(problem, solve_by_rank<T>(problem));
}

template <class T>
constexpr Bounds bounds_of() {
  static_assert(std::is_same_v<T, double> || std::is_same_v<T, float>);
  return std::is_same_v<T, double> ? double_bounds : float_bounds;
}

/// What is wrong with the ring's forward and backward pass in T; empty: nothing.
template <class T>
std::string complaint(RingProblem problem, Bounds bounds = bounds_of<T>()) {
  RingResult const result = solve<T>(problem);
  return judge(problem, result, bounds).complaint;
}

/// In double and in float.
inline std::string complaints(RingProblem const& problem) {
  return complaint<double>(problem) + complaint<float>(problem);
}

}  // namespace annulus_test
