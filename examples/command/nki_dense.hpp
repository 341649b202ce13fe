#pragma once
// Dense attention that rounds where a kernel does: what the error of a kernel is measured by.

#include "nki_problem.hpp"

namespace annulus_command {

/// Every product and sum in float; weights and gradients of the logits rounded to the element type of the operands
/// before they are multiplied, output and lse to their own types. Rows that see nothing have the output 0 and the lse
/// -inf.
Results<float> dense_in_kernel_rounding(NkiProblem const& problem, Inputs<float> const& inputs);

/// The gradient of the sinks, which kernels leave to the host, where there are sinks and a backward pass: from the
/// output and the lse in `results`, into them.
void add_sink_gradients(NkiProblem const& problem, Inputs<float> const& inputs, Results<float>& results);

}  // namespace annulus_command
