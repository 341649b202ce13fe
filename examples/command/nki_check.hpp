#pragma once
// Errors of simulated kernels against the reference, and the errors that their rounding explains.

#include <ostream>
#include <string>
#include <vector>

#include "nki_problem.hpp"

namespace annulus_command {

/// Error of one result.
struct NkiError {
  std::string name;
  double largest = 0;     ///< largest difference over the largest magnitude of the reference; lse: over 1 at least
  double distance = 0;    ///< relative, in the Frobenius norm; lse: the largest absolute difference; never NaN
  double dense = 0;       ///< the distance of dense attention that rounds where the kernel does
  double accepted = 0;    ///< largest accepted distance; always finite
  bool of_terms = false;  ///< relative to the terms of the sums, because they cancel, not to the reference

  bool good() const { return distance <= accepted; }
};

/// Errors of all results. reference: of the same operands, on one rank, in double. forward: also check output and lse.
std::vector<NkiError> nki_errors(NkiProblem const& problem, Inputs<float> const& inputs, Results<float> const& found,
                                 Results<double> const& reference, bool forward);

/// Prints a table with one line per result.
void print_errors(std::ostream& out, std::vector<NkiError> const& errors);

/// Throws std::runtime_error for the first error beyond what is accepted.
void require_good(std::vector<NkiError> const& errors);

}  // namespace annulus_command
