#pragma once
// The ring loop, which all passes share. It exchanges payloads between ranks and knows nothing of attention.

#include <exception>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/ring/exchange.hpp"
#include "annulus/ring/ring_buffers.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// Synchronizes the backend when an exception unwinds the stack: pending work must not read objects, such as the tiles
/// of a step, that the callers are about to destroy.
template <Backend B>
class SynchronizeOnUnwind {
 public:
  explicit SynchronizeOnUnwind(B& backend) : backend_(backend), exceptions_(std::uncaught_exceptions()) {}
  SynchronizeOnUnwind(SynchronizeOnUnwind const&) = delete;
  SynchronizeOnUnwind& operator=(SynchronizeOnUnwind const&) = delete;
  ~SynchronizeOnUnwind() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      backend_.synchronize();
    } catch (...) {  // the first failure is the one to report
    }
  }

 private:
  B& backend_;
  int exceptions_;
};

/// Implementation of rotate (below) for one kind of exchange: ZeroCopyExchange or CopiedExchange.
template <class Exchange, Communicator C, Backend B, class Visit, class Inspect, class Join, class Finish>
void rotate_with(RingPlan const& plan, C& communicator, B& backend, RingBuffers<C, B>& buffers, Visit& visit,
                 Inspect& inspect, Join& join, Finish& finish) {
  SynchronizeOnUnwind const synchronize(backend);
  // Declared after `synchronize`, so that it is destroyed first and the peers are notified of a failure at once.
  Exchange exchange(plan, communicator, buffers);
  // Abandons while the exchange exists: its destruction would notify the peers without the reason of the failure.
  or_abandon(communicator, [&] {
    for (int i = 0; i < plan.steps(); ++i)
      in_step(communicator.rank(), i, [&] {
        if constexpr (CallRecordingCommunicator<C>) communicator.flight_record().step(i, plan.steps());
        bool const last = i + 1 == plan.steps();
        if (!last) exchange.fetch_next(i);
        auto& results = exchange.results(i);
        auto const work = buffers.recorder.now();
        visit(i, exchange.here(), results, exchange.progress());
        buffers.recorder.report(IntervalKind::compute, work, i, plan.step(communicator.rank(), i).multiply_adds);
        bool const arrived = exchange.await_arrived(i);
        auto const rest = buffers.recorder.now();
        if (arrived) exchange.join_arrived(i - 1, results, join);
        // The exchange reads and overwrites memory that the backend works on.
        backend.synchronize();
        buffers.recorder.report(IntervalKind::synchronize, rest, i);
        inspect(i, results);
        exchange.send_results(i, results);
        if (!last) exchange.await_next(i);
      });
    in_step(communicator.rank(), plan.steps() - 1, [&] { finish(exchange.return_to_owner(join)); });
    backend.synchronize();
  });
}

/// Executes all steps of the plan on this rank. On entry buffers.prefetched[0] holds those of this rank's rows that are
/// to be sent. On return the backend is synchronized. An error of the communicator names the step.
///   visit(step, here, results, progress)  starts the work of a step on the payload `here` (at step 0 on the caller's
///                     own rows instead); results: the payload for carried results, with the rows that the plan holds
///                     at this step; progress: to be passed to the backend
///   inspect(step, results)  is called after the work of the step has been synchronized
///   join(into, from, sent_in)  adds carried results that have arrived, after they were sent in step sent_in, to those of
///                     the same rows
///   finish(own_results)  starts the remaining work on the carried results for this rank's own rows (unspecified if the
///                     pass carries nothing), which stay valid until the backend is synchronized
template <Communicator C, Backend B, class Visit, class Inspect, class Join, class Finish>
void rotate(RingPlan const& plan, C& communicator, B& backend, RingBuffers<C, B>& buffers, Visit&& visit,
            Inspect&& inspect, Join&& join, Finish&& finish) {
  if constexpr (ZeroCopyCommunicator<C>) {
    if (plan.request().zero_copy)
      return rotate_with<ZeroCopyExchange<C, B>>(plan, communicator, backend, buffers, visit, inspect, join, finish);
  }
  rotate_with<CopiedExchange<C, B>>(plan, communicator, backend, buffers, visit, inspect, join, finish);
}

}  // namespace annulus::detail
