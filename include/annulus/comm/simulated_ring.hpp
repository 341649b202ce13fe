#pragma once
// Communicator of a ring inside one process, whose ranks are threads. With zero-copy exchange they read each other's
// buffers; a shift copies straight from the sender's bytes to the receiver's.

#include <type_traits>

#include "annulus/comm/endpoint_ring.hpp"
#include "annulus/comm/simulated/endpoint.hpp"
#include "annulus/comm/threads/run_ranks.hpp"
#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/function_ref.hpp"

namespace annulus {

/// Runs function(ring) on `ranks` threads that form a ring, and returns when all have ended: nothing, or the functions'
/// results as a vector in rank order. If a rank throws, the others' waits fail, and run_ring rethrows that rank's
/// exception. A thread cannot be ended from outside: after a deadline has passed, run_ring returns only when the rank
/// that held up the ring has ended, too. Throws UnsupportedError if ranks < 1 or an option is out of range, and Error
/// if the system refuses the thread of a rank.
template <class Function>
auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options = {});

/// The communicator of one rank of run_ring, which makes it, and destroys it when the rank's function has returned.
class SimulatedRing : public detail::EndpointRing<detail::SimulatedEndpoint*> {
  using EndpointRing::EndpointRing;

  template <class Function>
  friend auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options);
  /// The part of run_ring that does not depend on the type of the function.
  static void run_ranks(int ranks, detail::FunctionRef<void(SimulatedRing&)> function,
                        SimulatedRingOptions const& options);
};

static_assert(ZeroCopyCommunicator<SimulatedRing> && CallRecordingCommunicator<SimulatedRing> &&
              TopologyAwareCommunicator<SimulatedRing>);

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE void SimulatedRing::run_ranks(int ranks, detail::FunctionRef<void(SimulatedRing&)> function,
                                             SimulatedRingOptions const& options) {
  detail::check<UnsupportedError>(ranks >= 1, "run_ring over ", ranks, " ranks; at least one is needed");
  detail::check<UnsupportedError>(options.timeout.count() >= 1, "SimulatedRingOptions: timeout is ",
                                  options.timeout.count(), " ms; at least 1 ms is accepted");
  detail::check<UnsupportedError>(options.near_ranks >= 0, "SimulatedRingOptions: near_ranks is ", options.near_ranks,
                                  "; accepted: a number of consecutive ranks, or 0 for all");

  detail::SimulatedWorld world(ranks, options);
  auto const run = [&](Rank rank) {
    auto& endpoint = static_cast<detail::SimulatedEndpoint&>(*world.ranks[static_cast<std::size_t>(rank)]);
    SimulatedRing ring(&endpoint);
    function(ring);
    endpoint.leave();
  };
  detail::run_on_threads(world, "run_ring", run);
}

#endif

template <class Function>
auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options) {
  auto const run = [&](auto&& call) { SimulatedRing::run_ranks(ranks, call, options); };
  return detail::results_of_ranks<SimulatedRing>(ranks, run, function);
}

}  // namespace annulus
