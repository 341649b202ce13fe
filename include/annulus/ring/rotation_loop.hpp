#pragma once
// The one ring loop. It moves payloads and knows no attention.

#include <exception>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/ring/copied_exchange.hpp"
#include "annulus/ring/zero_copy_exchange.hpp"
#include "annulus/ring/ring_buffers.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

namespace detail {

/// Synchronizes the backend when an exception passes: it must no longer read what the work in hand refers to, such as the
/// tiles of a step, when the callers end it.
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

/// rotate below, with the exchanges of the pass.
template <class Exchange, Communicator C, Backend B, class Visit, class Inspect, class Join, class Finish>
void rotate_with(RingPlan const& plan, C& communicator, B& backend, RingBuffers<C, B>& buffers, Visit& visit,
                 Inspect& inspect, Join& join, Finish& finish) {
  SynchronizeOnUnwind const synchronize(backend);
  // Declared after `synchronize`, so that it ends first and the peers learn of a failure at once.
  Exchange exchange(plan, communicator, buffers);
  // Within the lifetime of the exchanges: once they are dropped, the peers would learn only that.
  or_abandon(communicator, [&] {
    for (int i = 0; i < plan.steps(); ++i)
      in_step(communicator.rank(), i, [&] {
        if constexpr (CallRecordingCommunicator<C>) communicator.flight_record().step(i, plan.steps());
        bool const last = i + 1 == plan.steps();
        if (!last) exchange.fetch_next(i);
        auto& results = exchange.results(i);
        visit(i, exchange.here(), results, exchange.progress());
        exchange.join_arrived(i, results, join);
        // An exchange reads and overwrites memory that the backend works on.
        backend.synchronize();
        inspect(i, results);
        exchange.pass_on(i, results);
        if (!last) exchange.await_next(i);
      });
    in_step(communicator.rank(), plan.steps() - 1, [&] { finish(exchange.return_to_owner(join)); });
    backend.synchronize();
  });
}

}  // namespace detail

/// Takes this rank through all steps of the plan. buffers.prefetched[0] holds the rows of step 0 that are to be sent.
///   visit(step, here, results, progress)  starts the work of a step on the payload `here` (not yet valid at step 0,
///                     where the rows are the caller's own); results: where what is carried goes, rows as in the plan;
///                     progress: for the backend to call
///   inspect(step, results)  looks at what the step has added, when it is done
///   join(into, from)  adds carried results that have arrived to those of the same rows
///   finish(home)      starts what is left to do with the carried results for this rank's own rows (without meaning
///                     where nothing is carried), which stay valid until the backend is synchronized
/// When it returns, the backend is synchronized.
template <Communicator C, Backend B, class Visit, class Inspect, class Join, class Finish>
void rotate(RingPlan const& plan, C& communicator, B& backend, RingBuffers<C, B>& buffers, Visit&& visit,
            Inspect&& inspect, Join&& join, Finish&& finish) {
  if constexpr (ZeroCopyCommunicator<C>) {
    if (plan.request().zero_copy)
      return detail::rotate_with<ZeroCopyExchange<C, B>>(plan, communicator, backend, buffers, visit, inspect, join, finish);
  }
  detail::rotate_with<CopiedExchange<C, B>>(plan, communicator, backend, buffers, visit, inspect, join, finish);
}

}  // namespace annulus
