#pragma once
// The one ring loop. It moves payloads and knows no attention.

#include <exception>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/ring/copied_exchange.hpp"
#include "annulus/ring/lent_exchange.hpp"
#include "annulus/ring/ring_buffers.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

namespace detail {

/// When an exception passes, waits until the backend no longer reads what the work in hand refers to, such as the tiles
/// of a step: the callers below are about to end it.
template <Backend B>
class RestWhenUnwound {
 public:
  explicit RestWhenUnwound(B& backend) : backend_(backend), exceptions_(std::uncaught_exceptions()) {}
  RestWhenUnwound(RestWhenUnwound const&) = delete;
  RestWhenUnwound& operator=(RestWhenUnwound const&) = delete;
  ~RestWhenUnwound() {
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
template <class Exchange, Communicator C, Backend B, class Visit, class Join, class Finish>
void rotate_with(RingPlan const& plan, C& communicator, B& backend, RingBuffers<C, B>& buffers, Visit& visit, Join& join,
                 Finish& finish) {
  RestWhenUnwound const rest(backend);
  // After `rest`, so that it ends first and the peers learn of a failure at once.
  Exchange exchange(plan, communicator, buffers);
  try {
    for (int i = 0; i < plan.steps(); ++i) {
      bool const last = i + 1 == plan.steps();
      if (!last) exchange.fetch_next(i);
      auto& results = exchange.results(i);
      visit(i, exchange.here(), results, exchange.progress());
      exchange.join_arrived(i, results, join);
      // An exchange reads and overwrites memory that the backend works on, so it must have come to rest.
      backend.synchronize();
      exchange.pass_on(i, results);
      if (!last) exchange.await_next(i);
    }
    finish(exchange.come_home(join));
    backend.synchronize();
  } catch (std::exception const& error) {
    // While the exchanges live: once they are dropped, the peers would learn only that.
    communicator.abandon(error.what());
    throw;
  }
}

}  // namespace detail

/// Takes this rank through all steps of the plan. buffers.prefetched[0] holds the rows of step 0 that are to be sent.
///   visit(step, here, results, progress)  starts the work of a step on the payload `here` (not yet valid at step 0,
///                     where the rows are the caller's own); results: where what is carried goes, rows as in the plan;
///                     progress: for the backend to call
///   join(into, from)  adds carried results that have arrived to those of the same rows
///   finish(home)      starts what is left to do with the carried results for this rank's own rows (without meaning
///                     where nothing is carried), which are there until it has come to rest
/// When it returns, the backend has come to rest.
template <Communicator C, Backend B, class Visit, class Join, class Finish>
void rotate(RingPlan const& plan, C& communicator, B& backend, RingBuffers<C, B>& buffers, Visit&& visit, Join&& join,
            Finish&& finish) {
  if constexpr (LendingCommunicator<C>) {
    if (plan.request().in_place)
      return detail::rotate_with<LentExchange<C, B>>(plan, communicator, backend, buffers, visit, join, finish);
  }
  detail::rotate_with<CopiedExchange<C, B>>(plan, communicator, backend, buffers, visit, join, finish);
}

}  // namespace annulus
