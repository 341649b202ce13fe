#pragma once
// Between tensors as the command has them and operands as a kernel lays them out.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "nki_kernels.hpp"

namespace annulus_command {

/// Operands of a kernel by name, in row-major order: what annulus::nki::simulate takes and returns.
using DeviceTensors = std::map<std::string, std::vector<float>, std::less<>>;

/// All inputs of the kernel on rank `rank`. own: its shard; forward: output and lse of its rows, which the backward
/// kernel takes.
DeviceTensors device_inputs(NkiProblem const& problem, NkiKernel const& kernel, int rank, Inputs<float> const& own,
                            Results<float> const& forward);

/// The outputs of the kernel, into the results of this rank.
void take_outputs(NkiProblem const& problem, DeviceTensors const& outputs, Results<float>& own);

}  // namespace annulus_command
