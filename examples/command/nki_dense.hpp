#pragma once
// Dense attention that rounds where a kernel does; its error determines the accepted error of the kernel.

#include "nki_problem.hpp"

namespace annulus_command {

/// Every product and sum in float; weights and gradients of the logits rounded to the element type of the operands
/// before they are multiplied, output and lse to their own types. Fully masked rows have output 0 and lse -inf.
Results<float> dense_in_kernel_rounding(NkiProblem const& problem, Inputs<float> const& inputs);

/// Computes results.dsinks, if set, from the output and lse in `results`. Kernels leave the gradient of the sink logits
/// to the host.
void add_sink_gradients(NkiProblem const& problem, Inputs<float> const& inputs, Results<float>& results);

}  // namespace annulus_command
