// run_ring: results, exceptions, deadlines and shared buffers.

#include "annulus/comm/simulated_ring.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

namespace {

/// An exception that is not derived from the library's errors.
struct Marker {
  Rank rank;
};

/// Passes a byte around until the ring fails.
void shift_until_failure(SimulatedRing& ring) {
  std::array<std::byte, 1> leaving{}, arriving{};
  std::array const out = {std::span<std::byte const>(leaving)};
  std::array const in = {std::span<std::byte>(arriving)};
  for (;;) ring.start_shift(Channel::prefetched, 1, out, in).wait();
}

}  // namespace

TEST_CASE("run_ring returns results in rank order", "[comm]") {
  for (int const ranks : {1, 2, 5, 16}) {
    auto const results = run_ring(ranks, [](SimulatedRing& ring) {
      // Rank 0 returns last.
      std::this_thread::sleep_for(std::chrono::milliseconds(ring.size() - ring.rank()));
      return std::to_string(ring.rank());
    });
    CHECK(results.size() == static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) CHECK(results[static_cast<std::size_t>(rank)] == std::to_string(rank));
  }
}

TEST_CASE("results may be move-only, not default-constructible, or bool", "[comm]") {
  auto const pointers = run_ring(3, [](SimulatedRing& ring) { return std::make_unique<int>(ring.rank()); });
  CHECK(*pointers[2] == 2);

  struct NoDefault {
    explicit NoDefault(int the_value) : value(the_value) {}
    int value;
  };
  CHECK(run_ring(3, [](SimulatedRing& ring) { return NoDefault(ring.rank()); })[1].value == 1);

  auto const flags = run_ring(4, [](SimulatedRing& ring) { return ring.rank() % 2 == 1; });
  CHECK(flags == std::vector<bool>{false, true, false, true});
}

TEST_CASE("a function without a result runs once on every rank", "[comm]") {
  std::array<std::atomic<int>, 5> calls{};
  static_assert(std::is_void_v<decltype(run_ring(1, [](SimulatedRing&) {}))>);
  run_ring(5, [&](SimulatedRing& ring) { ++calls[static_cast<std::size_t>(ring.rank())]; });
  for (auto const& count : calls) CHECK(count == 1);
}

TEST_CASE("the function is not copied", "[comm]") {
  struct Counting {
    std::unique_ptr<std::atomic<int>> calls = std::make_unique<std::atomic<int>>(0);
    void operator()(SimulatedRing&) const { ++*calls; }
  } const counting;
  run_ring(3, counting);
  CHECK(*counting.calls == 3);
}

TEST_CASE("a ring of no ranks is refused", "[comm]") {
  auto const nothing = [](SimulatedRing&) {};
  CHECK_THROWS_AS(run_ring(0, nothing), UnsupportedError);
  CHECK_THROWS_WITH(run_ring(-3, nothing), ContainsSubstring("-3 ranks"));
}

TEST_CASE("run_ring rethrows the exception that ended the ring with its type", "[comm]") {
  for (Rank const culprit : {0, 2, 3}) {
    CAPTURE(culprit);
    std::optional<Rank> seen;
    try {
      run_ring(4, [&](SimulatedRing& ring) {
        if (ring.rank() == culprit) throw Marker{ring.rank()};
        shift_until_failure(ring);
      });
    } catch (Marker const& marker) {
      seen = marker.rank;
    }
    CHECK(seen == culprit);
  }
}

TEST_CASE("ranks that catch their CommunicationError, and ranks that do not", "[comm]") {
  // The culprit returns normally; the others' exceptions are then the first failures.
  CHECK_THROWS_WITH(run_ring(3,
                             [](SimulatedRing& ring) {
                               if (ring.rank() == 1)
                                 ring.abandon("enough");
                               else
                                 shift_until_failure(ring);
                             }),
                    ContainsSubstring("enough"));

  // All ranks return normally: so does run_ring.
  auto const results = run_ring(3, [](SimulatedRing& ring) {
    if (ring.rank() == 1) ring.abandon("enough");
    try {
      shift_until_failure(ring);
    } catch (CommunicationError const&) {
    }
    return ring.rank();
  });
  CHECK(results == std::vector<Rank>{0, 1, 2});
}

TEST_CASE("a wait for a rank that has returned throws and says so", "[comm]") {
  CHECK_THROWS_WITH(run_ring(2,
                             [](SimulatedRing& ring) {
                               if (ring.rank() == 0) shift_until_failure(ring);
                             }),
                    ContainsSubstring("rank 0 waits for rank 1, which has returned"));
}

TEST_CASE("waits end at the deadline on all ranks, and the errors name the rank that holds up the ring", "[comm]") {
  using namespace std::chrono_literals;
  for (Rank const late : {0, 2}) {
    std::atomic<int> given_up = 0;
    auto const texts = run_ring(4,
                                [&](SimulatedRing& ring) -> std::string {
                                  if (ring.rank() == late) {
                                    while (given_up < 3) std::this_thread::sleep_for(1ms);
                                    return {};
                                  }
                                  try {
                                    shift_until_failure(ring);
                                  } catch (CommunicationError const& error) {
                                    ++given_up;
                                    return detail::message_of(error.neighbour(), ": ", error.what());
                                  }
                                  return {};
                                },
                                {.timeout = 400ms});  // no rank but the late one is as late, on a busy machine either
    for (Rank rank = 0; rank < 4; ++rank) {
      if (rank == late) continue;
      std::string const& text = texts[static_cast<std::size_t>(rank)];
      CAPTURE(late, rank, text);
      CHECK(text.find(detail::message_of(late, ": rank ")) == 0);
      CHECK_THAT(text, ContainsSubstring("waited 400 ms for rank ") && ContainsSubstring("(prefetched shift)") &&
                           ContainsSubstring(detail::message_of("rank ", late, " does not wait (last seen ")) &&
                           ContainsSubstring(detail::message_of("rank ", late, " holds up the ring")));
    }
  }
}

TEST_CASE("timeouts of a simulated ring are honoured or refused", "[comm]") {
  auto const nothing = [](SimulatedRing&) {};
  for (long const bad : {0, -5})
    CHECK_THROWS_WITH(run_ring(2, nothing, {.timeout = std::chrono::milliseconds(bad)}),
                      ContainsSubstring(detail::message_of("timeout is ", bad, " ms; at least 1 ms is accepted")));
  run_ring(2,
           [](SimulatedRing& ring) {
             std::array<std::byte, 2> all{};
             for (int round = 0; round < 10; ++round) ring.all_gather(std::span(all).first(1), all);
           },
           {.timeout = std::chrono::milliseconds::max()});
}

TEST_CASE("messages of different calls do not pair", "[comm]") {
  for (bool const zero_copy : {false, true}) {
    auto const texts = run_ring(2, [&](SimulatedRing& ring) -> std::string {
      for (int call = 0; call < 3 + ring.rank(); ++call) {
        ring.flight_record().begin(Pass::backward, std::nullopt);
        ring.flight_record().step(2, 4);
      }
      auto const buffer = ring.allocate(64);
      std::array const out = {std::span<std::byte const>(buffer.data(), 8)};
      std::array const in = {std::span<std::byte>(buffer.data() + 8, 8)};
      try {
        if (zero_copy)
          ring.open_window(Channel::carried, 1, out).wait();
        else
          ring.start_shift(Channel::carried, 1, out, in).wait();
      } catch (CommunicationError const& error) {
        return error.what();
      }
      return {};
    });
    int named = 0;
    for (Rank rank : {0, 1}) {
      std::string const& text = texts[static_cast<std::size_t>(rank)];
      CAPTURE(zero_copy, rank, text);
      CHECK(text != "");
      named += text.find(detail::message_of("rank ", rank, ": expected rows of call ", 3 + rank,
                                            ", backward, step 2, got rows of call ", 4 - rank)) == 0;
    }
    CHECK(named >= 1);
  }
}

TEST_CASE("rings inside a rank of a ring", "[comm]") {
  auto const sums = run_ring(2, [](SimulatedRing& outer) {
    auto const inner = run_ring(3, [&](SimulatedRing& ring) { return 10 * outer.rank() + ring.rank(); });
    return inner[0] + inner[1] + inner[2];
  });
  CHECK(sums == std::vector<int>{3, 33});
}

TEST_CASE("the ranks of a simulated ring share memory unless zero_copy is never", "[comm]") {
  for (auto const& [zero_copy, shares_memory] :
       {std::pair{ZeroCopy::automatic, true}, {ZeroCopy::always, true}, {ZeroCopy::never, false}})
    CHECK(run_ring(2, [](SimulatedRing& ring) { return ring.shares_memory(); }, {.zero_copy = zero_copy}) ==
          std::vector<bool>{shares_memory, shares_memory});
}

TEST_CASE("a buffer outlives its ring, and a window outlives its buffer", "[comm]") {
  struct Seen {
    SimulatedRing::Buffer kept;
    std::byte shared;
  };
  auto const seen = run_ring(2, [](SimulatedRing& ring) {
    auto const mine = std::byte{static_cast<unsigned char>(5 + ring.rank())};
    std::optional<SimulatedRing::Buffer> buffer(ring.allocate(100));
    std::fill_n(buffer->data(), 100, mine);
    std::array const runs = {std::span<std::byte const>(buffer->data(), 100)};
    auto window = ring.open_window(Channel::prefetched, 1, runs);
    Seen result{ring.allocate(7), {}};
    std::fill_n(result.kept.data(), 7, mine);
    buffer.reset();
    window.wait();
    result.shared = window.runs()[0][99];
    return result;
  });
  CHECK((seen[0].shared == std::byte{6} && seen[1].shared == std::byte{5}));
  CHECK((seen[0].kept.data()[6] == std::byte{5} && seen[1].kept.data()[0] == std::byte{6}));
  CHECK(seen[0].kept.size() == 7);
  CHECK(reinterpret_cast<std::uintptr_t>(seen[0].kept.data()) % 64 == 0);
  CHECK(run_ring(1, [](SimulatedRing& ring) { return ring.allocate(0).size(); })[0] == 0);
}

TEST_CASE("ranks of a simulated ring are near as its option says", "[comm]") {
  auto const lowest = [](int ranks, int near) {
    return run_ring(ranks,
                    [](SimulatedRing& ring) {
                      std::span<Rank const> const list = ring.near_ranks();
                      return std::vector<Rank>(list.begin(), list.end());
                    },
                    {.near_ranks = near});
  };
  for (auto const& list : lowest(5, 2)) CHECK(list == std::vector<Rank>{0, 0, 2, 2, 4});
  for (auto const& list : lowest(3, 0)) CHECK(list == std::vector<Rank>{0, 0, 0});
  for (auto const& list : lowest(3, 1)) CHECK(list == std::vector<Rank>{0, 1, 2});
  CHECK_THROWS_WITH(lowest(2, -1), ContainsSubstring("near_ranks is -1; accepted"));
}
