#pragma once
// Are the results of simulated kernels as near to the reference as their rounding lets them be?

#include <ostream>
#include <string>
#include <vector>

#include "nki_problem.hpp"

namespace annulus_command {

struct NkiError {
  std::string name;
  double largest = 0;     ///< largest difference over the largest magnitude of the reference; lse: over 1 at least
  double distance = 0;    ///< relative, in the Frobenius norm; lse: the largest absolute difference; never NaN
  double dense = 0;       ///< the distance of dense attention that rounds where the kernel does
  double accepted = 0;    ///< distances up to here; always finite
  bool of_terms = false;  ///< relative to the terms of the sums, which cancel, instead of to the reference

  bool good() const { return distance <= accepted; }
};

/// reference: of the same operands, on one rank and in double.
std::vector<NkiError> nki_errors(NkiProblem const& problem, Inputs<float> const& inputs, Results<float> const& found,
                                 Results<double> const& reference, bool forward);

void print_errors(std::ostream& out, std::vector<NkiError> const& errors);

/// Throws std::runtime_error for the first error beyond what is accepted.
void require_good(std::vector<NkiError> const& errors);

}  // namespace annulus_command
