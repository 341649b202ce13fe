#pragma once
// A whole call on simulated ranks, threads of this process that write to disjoint parts of the global results.

#include <annulus/comm/simulated_ring.hpp>
#include <cstddef>
#include <vector>

#include "call_tensors.hpp"
#include "rank_pass.hpp"
#include "tracing.hpp"

namespace annulus_command {

/// logs: one for each rank.
template <annulus::Scalar T>
Results<T> attend_simulated(Inputs<T> const& inputs, Call const& call, std::vector<StepLog>& logs) {
  int const ranks = static_cast<int>(logs.size());
  Results<T> results = make_results<T>(call, {call.shape.queries, call.shape.keys});
  annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    Share const share(call, ring.rank(), ranks);
    AnyRing any(ring);
    Results<T> const local =
        attend_on_rank(any, call, scatter(inputs, call, share), logs[static_cast<std::size_t>(ring.rank())]);
    gather(local, call, share, ring.rank() == 0, results);
  });
  return results;
}

}  // namespace annulus_command
