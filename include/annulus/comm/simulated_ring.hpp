#pragma once
// Communicator of a ring inside one process, whose ranks are threads. With zero-copy exchange they read each other's
// buffers; a shift copies straight from the sender's bytes to the receiver's.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/endpoint_ring.hpp"
#include "annulus/comm/simulated/endpoint.hpp"
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

  auto const count = static_cast<std::size_t>(ranks);
  detail::SimulatedWorld world(ranks, options);
  std::vector<std::exception_ptr> failures(count);
  auto const run = [&](Rank rank) {
    auto const r = static_cast<std::size_t>(rank);
    detail::SimulatedEndpoint& endpoint = *world.ranks[r];
    try {
      SimulatedRing ring(&endpoint);
      function(ring);
      endpoint.leave();
    } catch (std::exception const& error) {
      failures[r] = std::current_exception();
      endpoint.abandon(error.what(), rank);
    } catch (...) {
      failures[r] = std::current_exception();
      endpoint.abandon("it threw an exception of unknown type", rank);
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    auto const start = [&](Rank rank) {
      try {
        threads.emplace_back(run, rank);
      } catch (std::exception const& error) {
        throw Error(detail::message_of("run_ring over ", ranks, " ranks needs ", ranks - 1,
                                       " threads; the system refuses the thread of rank ", rank, ": ", error.what()));
      }
    };
    for (Rank rank = 1; rank < ranks; ++rank) try {
        start(rank);
      } catch (...) {
        auto const r = static_cast<std::size_t>(rank);
        world.ranks[r]->abandon("no thread could be created for it", rank);
        failures[r] = std::current_exception();
        break;
      }
    run(0);
  }
  // The rank that closed the ring failed first; the exceptions of the others follow from that.
  if (Rank const closer = world.closer; closer != CommunicationError::unknown)
    if (auto const& first = failures[static_cast<std::size_t>(closer)]) std::rethrow_exception(first);
  for (auto const& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

#endif

template <class Function>
auto run_ring(int ranks, Function&& function, SimulatedRingOptions const& options) {
  using Result = std::invoke_result_t<Function&, SimulatedRing&>;
  if constexpr (std::is_void_v<Result>) {
    auto const call = [&](SimulatedRing& ring) { function(ring); };
    SimulatedRing::run_ranks(ranks, call, options);
  } else {
    std::vector<std::optional<Result>> results(static_cast<std::size_t>(std::max(ranks, 0)));
    auto const call = [&](SimulatedRing& ring) { results[static_cast<std::size_t>(ring.rank())] = function(ring); };
    SimulatedRing::run_ranks(ranks, call, options);
    std::vector<Result> values;
    for (auto& result : results) values.push_back(std::move(*result));
    return values;
  }
}

}  // namespace annulus
