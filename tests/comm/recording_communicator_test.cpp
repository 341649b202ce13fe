// The log of a recording communicator matches what happened.

#include "support/recording_communicator.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Recorded = RecordingCommunicator<SimulatedRing>;

/// One run of `bytes` bytes each way, on buffers of its own.
struct OneRun {
  explicit OneRun(std::size_t bytes) : leaving(bytes), arriving(bytes) {}
  auto start(Recorded& ring, Channel channel, int hop) {
    std::array const out = {std::span<std::byte const>(leaving), std::span<std::byte const>()};
    std::array const in = {std::span<std::byte>(arriving), std::span<std::byte>()};
    return ring.start_shift(channel, hop, out, in);
  }
  std::vector<std::byte> leaving, arriving;
};

}  // namespace

TEST_CASE("a recorded ring counts shifts, bytes and hops by channel, in order", "[support]") {
  auto const logs = run_ring(3, [](SimulatedRing& simulated) {
    Recorded ring(simulated);
    OneRun keys(100), more_keys(50), gradients(7);
    {
      auto first = keys.start(ring, Channel::prefetched, 1);
      auto second = more_keys.start(ring, Channel::prefetched, 2);
      auto third = gradients.start(ring, Channel::carried, 1);
      ring.mark("compute");
      third.wait();
      first.wait();
      second.wait();
    }
    std::array<std::byte, 4> mine{};
    std::array<std::byte, 12> all{};
    ring.all_gather(mine, all);
    return ring;
  });
  using enum RecordedEvent::Kind;
  for (auto const& ring : logs) {
    std::vector<RecordedEvent> const expected = {
        {started, 0, Channel::prefetched, 1, 100, 100, 2}, {started, 1, Channel::prefetched, 2, 50, 50, 2},
        {started, 2, Channel::carried, 1, 7, 7, 2},        {marked, -1, {}, 0, 0, 0, 0, "compute"},
        {finished, 2, Channel::carried, 1, 7, 7, 2},       {finished, 0, Channel::prefetched, 1, 100, 100, 2},
        {finished, 1, Channel::prefetched, 2, 50, 50, 2},  {gathered, -1, {}, 0, 4, 12, 1},
    };
    CHECK((ring.events() == expected));
    CHECK(ring.shifts(Channel::prefetched) == 2);
    CHECK(ring.shifts(Channel::reduction) == 0);
    CHECK(ring.bytes_sent(Channel::prefetched) == 150);
    CHECK(ring.bytes_sent(Channel::carried) == 7);
    CHECK(ring.hops(Channel::prefetched) == std::vector<int>{1, 2});
    CHECK(ring.most_pending(Channel::prefetched) == 2);
    CHECK(ring.most_pending(Channel::carried) == 1);
    CHECK(ring.pending(Channel::prefetched) == 0);
    CHECK(ring.count(gathered) == 1);
  }
}

TEST_CASE("a recorded ring tells failed and dropped transfers from finished ones", "[support]") {
  using enum RecordedEvent::Kind;
  auto const logs = run_ring(2, [](SimulatedRing& simulated) {
    Recorded ring(simulated);
    OneRun kept(8), waited(8);
    try {
      auto transfer = kept.start(ring, Channel::prefetched, 1);
      auto const moved = std::move(transfer);
      auto second = waited.start(ring, Channel::carried, 1);
      ring.all_gather({}, {});  // so that both have posted
      if (ring.rank() == 0) ring.abandon("for the test");
      for (;;) {
        second.wait();
        second = waited.start(ring, Channel::carried, 1);
      }
    } catch (CommunicationError const&) {
    }
    return ring;
  });
  for (Rank rank = 0; rank < 2; ++rank) {
    auto const& ring = logs[static_cast<std::size_t>(rank)];
    CHECK(ring.count(dropped) == 1);
    CHECK(ring.pending(Channel::prefetched) == 0);
    CHECK(ring.pending(Channel::carried) == 0);
    CHECK(ring.count(started) == ring.count(finished) + ring.count(failed) + ring.count(dropped));
    CHECK(ring.count(abandoned) == (rank == 0 ? 1 : 0));
  }
  auto const& events = logs[0].events();
  CHECK(std::count_if(events.begin(), events.end(), [](auto const& e) { return e.text == "for the test"; }) == 1);
}
