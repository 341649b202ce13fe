// Observers: intervals nest and sum as the plan says, results do not change, and an observer that throws ends the call
// on all ranks. Traces as JSON.

#include <annulus/annulus.hpp>
#include <atomic>
#include <sstream>
#include <string>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"
#include "support/interval_checks.hpp"
#include "support/random_ring_problem.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Seen = std::vector<Interval>;

/// Intervals of all ranks; complaints are failed checks.
std::vector<Seen> observe_all(RingProblem const& problem, ZeroCopy zero_copy) {
  std::vector<std::string> wrong(static_cast<std::size_t>(problem.ranks));
  auto const seen = run_ring(problem.ranks,
                             [&](SimulatedRing& ring) {
                               Seen mine;
                               wrong[static_cast<std::size_t>(ring.rank())] = observed_run<float>(problem, ring, mine);
                               return mine;
                             },
                             {.zero_copy = zero_copy});
  INFO(problem.text << ", zero_copy " << name_of(zero_copy));
  for (std::string const& complaint : wrong) CHECK(complaint.empty());
  return seen;
}

/// A call with this observer on one rank of a ring, and its outcome on each rank.
std::vector<Thrown> call_observed_by(Observer const& observer, int ranks, Rank observed, Pass pass, bool checked) {
  return run_ring(ranks, [&](SimulatedRing& ring) {
    Call call;
    make_good(call, ranks, ring.rank());
    call.pass = pass;
    ReferenceBackend backend;
    RingAttention attention(ring, backend,
                            {.checked = checked, .observer = ring.rank() == observed ? observer : Observer()});
    return attempt([&] { call.run(attention); });
  });
}

}  // namespace

TEST_CASE("intervals nest, sum to the plan, and do not change results", "[attention][observer]") {
  for (std::uint64_t seed = 920'000; seed < 920'060; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<float>(problem);
    for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::always}) observe_all(problem, zero_copy);
  }
}

TEST_CASE("zero-copy exchanges report the bytes that messages would send", "[attention][observer]") {
  for (Rotation rotation : {Rotation::keys, Rotation::queries})
    for (bool window : {false, true}) {
      RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 37}, 4, {}, rotation);
      if (window) problem.dense.window_left = 12;
      give_sinks(problem, 1);
      settle(problem);
      auto const bytes = [&](ZeroCopy zero_copy) {
        Index sum = 0;
        for (Seen const& seen : observe_all(problem, zero_copy))
          for (Interval const& interval : of_kind(seen, IntervalKind::exchange)) sum += interval.bytes;
        return sum;
      };
      Index const sent = bytes(ZeroCopy::never);
      CHECK(sent > 0);
      CHECK(bytes(ZeroCopy::always) == sent);
    }
}

TEST_CASE("reported waits for concurrent transfers of a group do not overlap", "[attention][observer]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::always})
    for (Schedule schedule : {Schedule::two_levels, Schedule::tiles, Schedule::all_gather}) {
      CAPTURE(name_of(zero_copy), name_of(schedule));
      auto const wrong =
          run_ring(4,
                   [&](SimulatedRing& ring) {
                     Seen seen;
                     Tensor q(1, 9, 4, 8), k(1, 9, 2, 8);
                     q.setConstant(0.5), k.setConstant(0.25);
                     ReferenceBackend backend;
                     RingAttention attention(ring, backend,
                                             {.schedule = schedule,
                                              .ranks_per_group = schedule == Schedule::all_gather ? 0 : 2,
                                              .observer = [&](Interval const& interval) { seen.push_back(interval); }});
                     attention.backward(q, attention.forward(q, k, k), q, k, k);
                     std::string text;
                     auto last = seen.front().begin;
                     for (Interval const& interval : seen) {
                       if (interval.kind == IntervalKind::call || interval.kind == IntervalKind::exchange) continue;
                       if (interval.begin < last)
                         text += "a " + std::string(name_of(interval.kind)) + " begins too early\n";
                       last = interval.end;
                     }
                     return text;
                   },
                   {.zero_copy = zero_copy});
      for (std::string const& text : wrong) CHECK(text == "");
    }
}

TEST_CASE("a rank that waits for a late one reports the wait", "[attention][observer]") {
  constexpr auto delay = std::chrono::milliseconds(40);
  std::atomic<bool> computed = false;  // by rank 1, whose wait begins next
  auto const seen = run_ring(2, [&](SimulatedRing& ring) {
    Seen mine;
    ReferenceBackend backend;
    auto const late = [&](Index, Index, Index query, Index key) {
      // Rank 0 is slow with one pair of its own, so rank 1 waits for its results.
      if (query == 0 && key == 0) {
        auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (!computed && std::chrono::steady_clock::now() < end) std::this_thread::yield();
        std::this_thread::sleep_for(delay);
      }
      return true;
    };
    Call call;
    make_good(call, 2, ring.rank());
    RingAttention attention(ring, backend,
                            {.mask = sliding_window(0, 1),
                             .rotation = Rotation::queries,
                             .observer =
                                 [&](Interval const& interval) {
                                   mine.push_back(interval);
                                   if (ring.rank() == 1 && interval.kind == IntervalKind::compute) computed = true;
                                 }},
                            late);
    call.run(attention);
    return mine;
  });
  auto const longest = [&](std::size_t rank, IntervalKind kind) {
    double most = 0;
    for (Interval const& interval : of_kind(seen[rank], kind)) most = std::max(most, interval.seconds());
    return most;
  };
  CHECK(longest(0, IntervalKind::compute) >= 0.04);
  CHECK(longest(1, IntervalKind::wait) >= 0.02);
}

TEST_CASE("an observer that throws ends the call on all ranks", "[attention][observer]") {
  constexpr int ranks = 3;
  for (Pass pass : {Pass::forward, Pass::backward})
    for (IntervalKind kind : {IntervalKind::call, IntervalKind::agreement, IntervalKind::compute,
                              IntervalKind::synchronize, IntervalKind::exchange, IntervalKind::wait})
      for (Rank observed = 0; observed < ranks; ++observed) {
        CAPTURE(name_of(pass), name_of(kind), observed);
        auto const outcomes = call_observed_by(
            [&](Interval const& interval) {
              if (interval.kind == kind) throw Error("the observer is full");
            },
            ranks, observed, pass, true);
        for (Rank rank = 0; rank < ranks; ++rank) {
          Thrown const& outcome = outcomes[static_cast<std::size_t>(rank)];
          CHECK(outcome.type == (rank == observed ? "Error" : "CommunicationError"));
          CHECK_THAT(outcome.text, ContainsSubstring("the observer is full"));
          if (rank != observed) CHECK_THAT(outcome.text, ContainsSubstring("rank " + std::to_string(observed)));
        }
      }
}

TEST_CASE("without an observer no time is read", "[attention][observer]") {
  CHECK(detail::IntervalRecorder().now() == Interval::Clock::time_point{});
  Observer const none, some = [](Interval const&) {};
  CHECK(detail::IntervalRecorder(none, Pass::forward, 0).now() == Interval::Clock::time_point{});
  CHECK(detail::IntervalRecorder(some, Pass::forward, 0).now() > Interval::Clock::time_point{});
}

TEST_CASE("a trace is a list of events with times in microseconds since the first", "[attention][observer]") {
  auto const at = [](long nanoseconds) {
    return Interval::Clock::time_point(std::chrono::nanoseconds(5'000'000 + nanoseconds));
  };
  Interval exchange{.kind = IntervalKind::exchange,
                    .pass = Pass::backward,
                    .channel = Channel::carried,
                    .rank = 1,
                    .step = 2,
                    .call = 7,
                    .begin = at(0),
                    .end = at(12'345),
                    .bytes = 64};
  exchange.parts = {Part::dk, Part::dv};
  Interval wait = exchange;
  wait.kind = IntervalKind::wait;
  wait.begin = at(12'005);
  wait.started = exchange.begin;
  std::ostringstream out;
  write_trace(out, std::vector<Seen>{{}, {wait, exchange}});
  CHECK(out.str() ==
        R"({"displayTimeUnit": "ms", "traceEvents": [
{"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "rank 1"}},
{"name": "backward wait carried", "cat": "exchange", "ph": "X", "pid": 1, "tid": 1, "ts": 12.005, "dur": 0.340, "args": {"call": 7, "step": 2, "parts": "dk, dv", "bytes_sent": 64, "in_flight_us": 12.345}},
{"name": "backward exchange carried", "cat": "in flight", "ph": "b", "pid": 1, "tid": 1, "ts": 0.000, "id": 0, "args": {"call": 7, "step": 2, "parts": "dk, dv", "bytes_sent": 64}},
{"name": "backward exchange carried", "cat": "in flight", "ph": "e", "pid": 1, "tid": 1, "ts": 12.345, "id": 0}
]}
)");
}
