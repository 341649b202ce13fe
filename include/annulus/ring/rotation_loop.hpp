#pragma once
// The ring loop, which all passes share. It exchanges payloads between ranks and knows nothing of attention.

#include <array>
#include <cstddef>
#include <exception>
#include <optional>
#include <span>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/core/function_ref.hpp"
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

/// The work of a pass on what one plan exchanges. The functions outlive the lane.
template <Communicator C, Backend B>
struct Lane {
  using Payload = typename RingBuffers<C, B>::Payload;

  RingPlan const& plan;
  RingBuffers<C, B>& buffers;
  /// visit(step, here, results, progress) starts the work of a step on the payload `here` (at step 0 on the caller's
  /// own rows instead); results: the payload for carried results, with the rows that the plan holds at this step;
  /// progress: to be passed to the backend.
  FunctionRef<void(int, Payload const&, Payload const&, Progress)> visit;
  /// inspect(step, results) is called after the work of the step has been synchronized.
  FunctionRef<void(int, Payload const&)> inspect;
  /// join(into, from, sent_in) adds carried results that have arrived, after they were sent in step sent_in, to those
  /// of the same rows.
  FunctionRef<void(Payload const&, Payload const&, int)> join;
  /// finish(own_results) starts the remaining work on the carried results for this rank's own rows (unspecified if the
  /// pass carries nothing), which stay valid until the backend is synchronized.
  FunctionRef<void(Payload const&)> finish;
};

/// Largest number of lanes of a plan.
constexpr std::size_t max_lanes = 2;

/// Implementation of rotate (below) for one kind of exchange: ZeroCopyExchange or CopiedExchange.
template <class Exchange, Communicator C, Backend B>
void rotate_with(C& communicator, B& backend, std::span<Lane<C, B> const> lanes) {
  using Payload = typename Lane<C, B>::Payload;
  SynchronizeOnUnwind const synchronize(backend);
  // Declared after `synchronize`, so that they are destroyed first and the peers are notified of a failure at once.
  std::array<std::optional<Exchange>, max_lanes> exchanges;
  std::array<Payload*, max_lanes> results{};
  std::array<bool, max_lanes> arrived{};
  for (std::size_t l = 0; l < lanes.size(); ++l) exchanges[l].emplace(lanes[l].plan, communicator, lanes[l].buffers);
  auto const advance = [&] {
    for (std::size_t l = 0; l < lanes.size(); ++l) exchanges[l]->progress()();
  };
  Progress progress;
  if (exchanges[0]->progress().call)
    progress = {[](void* all) { (*static_cast<decltype(advance)*>(all))(); },
                const_cast<void*>(static_cast<void const*>(&advance))};
  int const steps = lanes[0].plan.steps();
  Rank const rank = communicator.rank();
  IntervalRecorder const& recorder = lanes[0].buffers.recorder;
  // Abandons while the exchanges exist: their destruction would notify the peers without the reason of the failure.
  or_abandon(communicator, [&] {
    for (int i = 0; i < steps; ++i)
      in_step(rank, i, [&] {
        if constexpr (CallRecordingCommunicator<C>) communicator.flight_record().step(i, steps);
        bool const last = i + 1 == steps;
        for (std::size_t l = 0; l < lanes.size() && !last; ++l) exchanges[l]->fetch_next(i);
        for (std::size_t l = 0; l < lanes.size(); ++l) {
          results[l] = &exchanges[l]->results(i);
          auto const work = recorder.now();
          Payload const& here = i == 0 ? exchanges[l]->here() : lanes[l].buffers.wire.read(exchanges[l]->here());
          lanes[l].visit(i, here, *results[l], progress);
          recorder.report(IntervalKind::compute, work, i, lanes[l].plan.step(rank, i).multiply_adds);
        }
        for (std::size_t l = 0; l < lanes.size(); ++l) arrived[l] = exchanges[l]->await_arrived(i);
        auto const rest = recorder.now();
        for (std::size_t l = 0; l < lanes.size(); ++l)
          if (arrived[l]) exchanges[l]->join_arrived(i - 1, *results[l], lanes[l].join);
        // The exchanges read and overwrite memory that the backend works on.
        backend.synchronize();
        recorder.report(IntervalKind::synchronize, rest, i);
        for (std::size_t l = 0; l < lanes.size(); ++l) {
          lanes[l].inspect(i, *results[l]);
          exchanges[l]->send_results(i, *results[l]);
        }
        for (std::size_t l = 0; l < lanes.size() && !last; ++l) exchanges[l]->await_next(i);
      });
    in_step(rank, steps - 1, [&] {
      for (std::size_t l = 0; l < lanes.size(); ++l) lanes[l].finish(exchanges[l]->return_to_owner(lanes[l].join));
    });
    backend.synchronize();
  });
}

/// Executes all steps of the lanes of a plan on this rank; all lanes have as many steps. On entry prefetched[0] of a
/// lane's buffers holds those of this rank's rows that are to be sent. On return the backend is synchronized. An error
/// of the communicator names the step.
template <Communicator C, Backend B>
void rotate(C& communicator, B& backend, std::span<Lane<C, B> const> lanes) {
  if constexpr (ZeroCopyCommunicator<C>) {
    if (lanes[0].plan.request().zero_copy) return rotate_with<ZeroCopyExchange<C, B>>(communicator, backend, lanes);
  }
  rotate_with<CopiedExchange<C, B>>(communicator, backend, lanes);
}

}  // namespace annulus::detail
