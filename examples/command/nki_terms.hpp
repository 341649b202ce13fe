#pragma once
// Size of the terms whose sums are the results of attention, the scale of errors where the terms cancel.

#include "nki_problem.hpp"

namespace annulus_command {

/// The root of the sum of the squared terms of each element of out, dq, dk, dv and dsinks: about as large as
/// the sum if signs are random, larger where terms cancel, 0 where there are no terms. lse is unspecified.
///
/// reference: out and lse of the same operands, in double.
Results<double> term_sizes(NkiProblem const& problem, Inputs<float> const& inputs, Results<double> const& reference);

}  // namespace annulus_command
