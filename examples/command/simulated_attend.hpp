#pragma once
// A call on simulated ranks: threads of this process that write to disjoint parts of the global results.

#include <annulus/comm/simulated_ring.hpp>
#include <chrono>
#include <cstddef>
#include <vector>

#include "call_tensors.hpp"
#include "rank_pass.hpp"
#include "tracing.hpp"

namespace annulus_command {

/// Runs the call on logs.size() simulated ranks, one log each, and returns the global results. Throws
/// CommunicationError if a rank waits longer than `timeout` for another.
template <annulus::Scalar T>
Results<T> attend_simulated(Inputs<T> const& inputs, Call const& call, std::vector<StepLog>& logs,
                            std::chrono::milliseconds timeout) {
  int const ranks = static_cast<int>(logs.size());
  Results<T> results = make_results<T>(call, {call.shape.queries, call.shape.keys});
  auto const run = [&](annulus::SimulatedRing& ring) {
    Share const share(call, ring.rank(), ranks);
    AnyRing any(ring);
    Results<T> const local =
        attend_on_rank(any, call, scatter(inputs, call, share), logs[static_cast<std::size_t>(ring.rank())]);
    gather(local, call, share, ring.rank() == 0, results);
  };
  annulus::run_ring(ranks, run, {.timeout = timeout});
  return results;
}

}  // namespace annulus_command
