#pragma once
// Log of the exchanges of one rank in one pass, in order with the calls of its backend.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "support/observed_backend.hpp"
#include "support/recording_communicator.hpp"
#include "support/ring_run.hpp"

namespace annulus_test {

/// Events of a RecordingCommunicator; the backend's calls of fold, add_gradients and synchronize are marks in it.
struct PassLog {
  std::vector<RecordedEvent> events;

  std::vector<RecordedEvent> of(RecordedEvent::Kind kind, annulus::Channel channel) const {
    std::vector<RecordedEvent> found;
    for (auto const& event : events)
      if (event.kind == kind && event.channel == channel && event.shift >= 0) found.push_back(event);
    return found;
  }
  std::vector<RecordedEvent> shifts(annulus::Channel channel) const { return of(RecordedEvent::started, channel); }

  annulus::Index bytes(annulus::Channel channel) const {
    annulus::Index sum = 0;
    for (auto const& shift : shifts(channel)) sum += static_cast<annulus::Index>(shift.bytes_sent);
    return sum;
  }

  /// Indices of the events in the log.
  std::vector<int> places_of(RecordedEvent::Kind kind, annulus::Channel channel) const {
    return places(
        [&](auto const& event) { return event.kind == kind && event.channel == channel && event.shift >= 0; });
  }
  std::vector<int> places_of_mark(std::string_view text) const {
    return places([&](auto const& event) { return event.kind == RecordedEvent::marked && event.text == text; });
  }

 private:
  template <class Wanted>
  std::vector<int> places(Wanted&& wanted) const {
    std::vector<int> found;
    for (std::size_t i = 0; i < events.size(); ++i)
      if (wanted(events[i])) found.push_back(static_cast<int>(i));
    return found;
  }
};

/// Forward and backward of every rank: logs[rank][pass].
template <class T>
std::vector<std::array<PassLog, 2>> record_passes(RingProblem problem) {
  problem.options.checked = false;
  return annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    RecordingCommunicator recorded(ring);
    annulus::ReferenceBackend backend;
    ObservedBackend marking(backend, [&](std::string_view operation, annulus::Index) {
      if (operation == "fold" || operation == "add_gradients" || operation == "synchronize")
        recorded.mark(std::string(operation));
    });
    run_rank<T>(problem, recorded, marking);
    // Each pass begins with the comparison of the ranks' calls.
    std::array<PassLog, 2> logs;
    int pass = -1;
    for (auto const& event : recorded.events()) {
      pass += event.kind == RecordedEvent::gathered;
      if (pass < 0 || pass > 1) throw std::logic_error("PassLog: expected one forward and one backward pass");
      logs[static_cast<std::size_t>(pass)].events.push_back(event);
    }
    return logs;
  });
}

}  // namespace annulus_test
