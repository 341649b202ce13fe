#pragma once
// A call on GPUs of this machine: ranks are threads. A build without CUDA has only the interface.

#include <annulus/core/scalar.hpp>
#include <chrono>
#include <vector>

#include "call.hpp"
#include "options.hpp"
#include "timeline.hpp"

namespace annulus_command {

/// Number of GPUs. Throws InputError if there is none, or if the command was built without CUDA.
int number_of_gpus();

/// Throws InputError if the command, or the GPUs of this machine, cannot have so many ranks over peer or nccl.
void require_gpus(Comm comm, int ranks);

/// Runs the call on timelines.size() ranks, over peer or nccl, one timeline each, and returns the global results. Ranks
/// share GPUs, consecutive ones the same, where there are more ranks than GPUs. Throws CommunicationError if a rank
/// waits longer than `timeout` for another. Defined for the four element types.
template <annulus::Scalar T>
Results<T> attend_on_gpus(Inputs<T> const& inputs, Call const& call, Comm comm, std::vector<Timeline>& timelines,
                          std::chrono::milliseconds timeout);

}  // namespace annulus_command
