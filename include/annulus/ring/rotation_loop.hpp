#pragma once
// The one ring loop. It moves payloads and knows no attention.

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/core/check.hpp"
#include "annulus/ring/payload.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// All memory of a pass. Kept between calls, so that a repeated call allocates nothing.
template <class B>
struct RingBuffers {
  using Payload = annulus::Payload<typename B::Buffer, typename B::memory_space>;

  std::array<Payload, 2> prefetched;  ///< here now, and arriving
  std::array<Payload, 4> carried;     ///< home, fresh, second fresh, arriving
  Payload resident;
  Payload delta, bias_gradient, sink_gradients;  ///< backward only

  void reserve(B& backend, RingPlan const& plan, Rank rank) {
    for (Payload& payload : prefetched) payload.reserve(backend, plan.prefetched_layout(), plan.prefetched_rows(rank));
    auto const rows = plan.carried_rows(rank);
    for (std::size_t i = 0; i < carried.size(); ++i) carried[i].reserve(backend, plan.carried_layout(), rows[i]);
    resident.reserve(backend, plan.resident_layout(), plan.resident_rows(rank));
    resident.hold({0, plan.resident_rows(rank)});
    if (plan.request().pass == Pass::forward) return;
    for (auto [payload, layout, count] : {std::tuple{&delta, plan.delta_layout(), plan.local_queries(rank)},
                                          {&bias_gradient, plan.bias_gradient_layout(), plan.local_queries(rank)},
                                          {&sink_gradients, plan.sink_gradient_layout(), Index{plan.ranks() + 1}}}) {
      payload->reserve(backend, layout, count);
      payload->hold({0, count});
    }
  }

  Index bytes() const {
    Index sum = resident.buffer_bytes() + delta.buffer_bytes() + bias_gradient.buffer_bytes() +
                sink_gradients.buffer_bytes();
    for (Payload const& payload : prefetched) sum += payload.buffer_bytes();
    for (Payload const& payload : carried) sum += payload.buffer_bytes();
    return sum;
  }
};

namespace detail {

/// Waits; an error of the communicator also names the step.
template <class T>
void wait_in_step(T& transfer, Rank rank, int step) {
  try {
    transfer.wait();
  } catch (CommunicationError const& error) {
    throw CommunicationError(message_of("step ", step, " of the ring: ", error.what()), rank, step, error.neighbour());
  }
}

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

}  // namespace detail

/// Takes this rank through all steps of the plan. buffers.prefetched[0] holds the rows of step 0 that are to be sent.
///   visit(step, here, results)  starts the work of a step on the payload `here` (not yet valid at step 0, where the
///                               rows are the caller's own); results: where what is carried goes, rows as in the plan
///   join(into, from)            adds carried results that have arrived to those of the same rows
/// Returns the carried payload of this rank's own rows; without meaning where nothing is carried.
template <Communicator C, Backend B, class Visit, class Join>
typename RingBuffers<B>::Payload& rotate(RingPlan const& plan, C& communicator, B& backend, RingBuffers<B>& buffers,
                                         Visit&& visit, Join&& join) {
  using Transfer = TransferOf<C>;
  using Payload = typename RingBuffers<B>::Payload;
  Rank const rank = communicator.rank();
  bool const carries = !plan.carried_layout().row_bytes.empty();
  bool const direct = plan.carried_direct();
  Payload *here = &buffers.prefetched[0], *next = &buffers.prefetched[1];
  Payload &home = buffers.carried[0], &arriving = buffers.carried[3];
  Payload *fresh = &buffers.carried[1], *leaving = &buffers.carried[2];
  if (plan.steps() == 1) fresh = &home;

  detail::RestWhenUnwound const rest(backend);
  // After `rest`, so that they end first and the peers learn of a failure at once.
  std::optional<Transfer> ahead, behind;
  auto const join_arrived = [&](Payload& into, int step) {
    if (!behind) return;
    detail::wait_in_step(*behind, rank, step);
    behind.reset();
    join(into, arriving);
  };

  try {
    for (int i = 0; i < plan.steps(); ++i) {
      PlannedStep const& step = plan.step(rank, i);
      if (i + 1 < plan.steps()) {
        next->hold(plan.step(rank, i + 1).held);
        auto const out = here->outgoing(step.sent);
        auto const in = next->incoming(next->rows());
        ahead.emplace(communicator.start_shift(Channel::prefetched, plan.prefetched_hop(i), out, in));
      }
      Payload& results = direct && i == 0 ? home : *fresh;
      results.hold(step.held);
      visit(i, *here, results);
      if (carries) join_arrived(direct ? home : results, i);
      // A shift reads and overwrites memory that the backend works on, so it must have come to rest.
      backend.synchronize();
      if (carries && plan.carried_hop(i) > 0) {
        arriving.hold(step.arriving);
        auto const out = results.outgoing(step.carried);
        auto const in = arriving.incoming(arriving.rows());
        behind.emplace(communicator.start_shift(Channel::carried, plan.carried_hop(i), out, in));
        if (plan.carried_rows(rank)[2] > 0) std::swap(fresh, leaving);
      }
      if (ahead) {
        detail::wait_in_step(*ahead, rank, i);
        ahead.reset();
        std::swap(here, next);
      }
    }
    if (!carries || plan.steps() == 1) return home;
    if (direct) {
      join_arrived(home, plan.steps() - 1);
      backend.synchronize();
      return home;
    }
    detail::wait_in_step(*behind, rank, plan.steps() - 1);
    return arriving;
  } catch (std::exception const& error) {
    // While the transfers live: once they are dropped, the peers would learn only that.
    communicator.abandon(error.what());
    throw;
  }
}

}  // namespace annulus
