#pragma once
// Solver of ring problems on the simulated ring, compiled once for all tests of this folder. It uses the asked backend:
// the one that the environment variable ANNULUS_TEST_BACKEND names: reference (default) or cpu. ANNULUS_TEST_WIRE names
// the wire type of complaint().

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

/// Calls function(backend) with a new asked backend. Results that are compared bit by bit with those of solve_by_rank
/// must come from it.
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

/// Solves with operands of type T and returns the result of each rank. The problem must have been settled and its
/// values rounded to T. Uses the predicate of `dense`, if any.
template <class T>
std::vector<RingResult> solve_by_rank(RingProblem const& problem);

extern template std::vector<RingResult> solve_by_rank<double>(RingProblem const&);
extern template std::vector<RingResult> solve_by_rank<float>(RingProblem const&);
extern template std::vector<RingResult> solve_by_rank<Eigen::half>(RingProblem const&);
extern template std::vector<RingResult> solve_by_rank<Eigen::bfloat16>(RingProblem const&);

/// Solves with float operands and all sums in double; otherwise as solve_by_rank.
std::vector<RingResult> solve_with_sums_in_double(RingProblem const& problem);

/// Settles the problem, rounds its operands to T, solves it and assembles the global result.
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

/// The wire type that the environment asks for; as stored by default.
inline annulus::Wire asked_wire() {
  char const* const asked = std::getenv("ANNULUS_TEST_WIRE");
  for (annulus::Wire wire : {annulus::Wire::as_stored, annulus::Wire::bfloat16, annulus::Wire::half})
    if (!asked || name_of(wire) == asked) return wire;
  throw std::invalid_argument("ANNULUS_TEST_WIRE=" + std::string(asked) + "; accepted: as_stored, bfloat16, half");
}

/// Complaint of the judge about the forward and backward pass in T, on the asked wire; empty if they are right.
template <class T>
std::string complaint(RingProblem problem, Bounds bounds = bounds_of<T>()) {
  if (problem.options.wire == annulus::Wire::as_stored) problem.options.wire = asked_wire();
  RingResult const result = solve<T>(problem);
  return judge(problem, result, bounds).complaint;
}

/// Complaints about the passes in double and in float.
inline std::string complaints(RingProblem const& problem) {
  return complaint<double>(problem) + complaint<float>(problem);
}

}  // namespace annulus_test
