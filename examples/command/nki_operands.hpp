#pragma once
// Conversion between the tensors of the command and the operand layouts of a kernel.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nki_kernels.hpp"

namespace annulus_command {

/// Operands of a kernel by name, in row-major order: what annulus::nki::simulate takes and returns.
using DeviceTensors = std::map<std::string, std::vector<float>, std::less<>>;

/// All inputs of the kernel on rank `rank`. own: its shard; forward: output and lse of its rows, read by the backward
/// kernel.
DeviceTensors device_inputs(NkiProblem const& problem, NkiKernel const& kernel, int rank, Inputs<float> const& own,
                            Results<float> const& forward);

/// Copies the outputs of the kernel into the results of this rank.
void take_outputs(NkiProblem const& problem, DeviceTensors const& outputs, Results<float>& own);

}  // namespace annulus_command
