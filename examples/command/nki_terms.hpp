#pragma once
// How large the terms are whose sums the results of attention are: what an error is measured by where they cancel.

#include "nki_problem.hpp"

namespace annulus_command {

/// The root of the sum of the squared terms of each element of out, dq, dk, dv and dsinks: as large as the sum where
/// signs are a matter of luck, larger where terms cancel, 0 where there are none. lse is left unspecified.
///
/// reference: out and lse of the same operands, in double.
Results<double> term_sizes(NkiProblem const& problem, Inputs<float> const& inputs, Results<double> const& reference);

}  // namespace annulus_command
