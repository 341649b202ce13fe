// Estimates of plans, by cases computed by hand.

#include "annulus/schedule/estimate.hpp"

#include <algorithm>
#include <vector>

#include "schedule/random_plan_request.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;

namespace {

/// Two heads of 8, 4 bytes: a key and its value have 64 bytes for each kv head, a pair 16 multiply-adds for each head.
PlanRequest request_of(int ranks, Index rows, Pass pass = Pass::forward, Rotation rotation = Rotation::keys) {
  std::vector<Index> const lengths(static_cast<std::size_t>(ranks), rows);
  return {.pass = pass,
          .shape = {.query_heads = 2, .kv_heads = 1, .head_dim = 8, .value_dim = 8},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .rotation = rotation};
}

bool near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::max(1.0, std::abs(b)); }

}  // namespace

TEST_CASE("an estimate of one rank is its work", "[schedule][estimate]") {
  RingPlan const plan(request_of(1, 10));
  // 100 pairs, 2 heads, 16 multiply-adds of two operations.
  PlanEstimate const estimate = plan.estimate({.flops = 100, .step_overhead = 3});
  CHECK(near(estimate.seconds, 64 + 3));
  CHECK(near(estimate.exposed(), 0));
  CHECK(near(estimate.step(0, 0).compute, 67));
}

TEST_CASE("messages that are shorter than the work are hidden, longer ones are exposed", "[schedule][estimate]") {
  RingPlan const plan(request_of(4, 10));
  // A step: 6400 operations; a shift: 640 bytes.
  PlanEstimate const hidden = plan.estimate({.flops = 6400, .near = {.latency = 0.25, .bandwidth = 1280}});
  CHECK(near(hidden.seconds, 4));
  CHECK(near(hidden.exposed(), 0));
  PlanEstimate const exposed = plan.estimate({.flops = 6400, .near = {.latency = 0.25, .bandwidth = 320}});
  // Three shifts of 2.25 seconds, then the work of the last step.
  CHECK(near(exposed.seconds, 3 * 2.25 + 1));
  CHECK(near(exposed.exposed(), 3 * 1.25));
  for (Rank rank = 0; rank < 4; ++rank)
    for (int i = 0; i < 3; ++i) CHECK(near(exposed.step(rank, i).exposed(), 1.25));
  CHECK(near(exposed.step(0, 3).exposed(), 0));
  CHECK(near(exposed.step(2, 2).begin, 4.5));
}

TEST_CASE("without overlap messages follow the work", "[schedule][estimate]") {
  RingPlan const plan(request_of(4, 10));
  Rates const rates{.flops = 6400, .near = {.latency = 0.25, .bandwidth = 1280}, .overlap = 0};
  CHECK(near(plan.estimate(rates).seconds, 4 + 3 * 0.75));
  Rates const half{.flops = 6400, .near = {.latency = 0.25, .bandwidth = 1280}, .overlap = 0.5};
  // Half of the work is over when a message starts: it ends 0.25 seconds after the work.
  CHECK(near(plan.estimate(half).seconds, 4 + 3 * 0.25));
}

TEST_CASE("a ring is as slow as its slowest link", "[schedule][estimate]") {
  RingPlan const plan(request_of(4, 10));
  Rates const rates{.flops = 6400, .near = {.bandwidth = 6400}, .far = {.latency = 1, .bandwidth = 640}, .group = 2};
  // Far shifts, from rank 1 to 2 and from 3 to 0, take 2 seconds; each rank is at an end of one.
  CHECK(near(plan.estimate(rates).seconds, 3 * 2 + 1));
  Rates const one_group{
      .flops = 6400, .near = {.bandwidth = 6400}, .far = {.latency = 1, .bandwidth = 640}, .group = 4};
  CHECK(near(plan.estimate(one_group).seconds, 4));
}

TEST_CASE("an uneven step keeps the neighbours waiting", "[schedule][estimate]") {
  PlanRequest request = request_of(2, 10);
  request.rules.mask = causal();
  RingPlan const plan(request);
  // Rank 0 has 55 pairs and then none, rank 1 has 55 and then 100; 64 operations a pair. Shifts are short.
  PlanEstimate const estimate = plan.estimate({.flops = 64});
  CHECK(near(estimate.seconds, 155));
  CHECK(near(estimate.step(0, 1).compute, 0));
  CHECK(near(estimate.exposed(), 155 - (55 + 155) / 2.0));
}

TEST_CASE("carried results are exposed after the last step", "[schedule][estimate]") {
  RingPlan const plan(request_of(2, 10, Pass::backward));
  // 100 pairs, 2 heads, 40 multiply-adds of two operations: 16000 operations; 640 bytes of dk and dv.
  PlanEstimate const fast = plan.estimate({.flops = 16000, .near = {.bandwidth = 6400}});
  CHECK(near(fast.seconds, 2 + 0.1));
  // A slow link: keys and values take 2 seconds; the results of step 0, sent after 1 second of work, arrive with the
  // end of step 1 at 3 seconds; those of step 1 take 2 more.
  PlanEstimate const slow = plan.estimate({.flops = 16000, .near = {.bandwidth = 320}});
  CHECK(near(slow.seconds, 2 + 1 + 2));
}

TEST_CASE("zero-copy exchange takes the latency alone", "[schedule][estimate]") {
  PlanRequest request = request_of(4, 10);
  request.zero_copy = true;
  CHECK(
      near(RingPlan(request).estimate({.flops = 6400, .near = {.latency = 2, .bandwidth = 1e-3}}).seconds, 3 * 2 + 1));
}

TEST_CASE("in both directions messages to different ranks take their time at once", "[schedule][estimate]") {
  // Halves of the heads, or of the rows of one kv head.
  Index const kv_heads = GENERATE(2, 1);
  auto const seconds = [kv_heads](int ranks, Schedule schedule, Pass pass) {
    PlanRequest request = request_of(ranks, 10, pass);
    request.shape.kv_heads = kv_heads;
    request.shape.head_dim *= 2 / kv_heads;
    request.shape.value_dim *= 2 / kv_heads;
    request.schedule = schedule;
    return RingPlan(request).estimate({.flops = 64e9, .near = {.bandwidth = 640}}).seconds;
  };
  // A shift of all rows has 1280 bytes. Work takes no time.
  CHECK(std::abs(seconds(4, Schedule::ring, Pass::forward) - 3 * 2) < 1e-6);
  CHECK(std::abs(seconds(4, Schedule::both_directions, Pass::forward) - 3 * 1) < 1e-6);
  CHECK(std::abs(seconds(4, Schedule::both_directions, Pass::backward) -
                 seconds(4, Schedule::ring, Pass::backward) / 2) < 1e-6);
  // Two ranks have one link each way, which both halves share.
  CHECK(std::abs(seconds(2, Schedule::both_directions, Pass::forward) - 2) < 1e-6);
}

TEST_CASE("gradients of sink logits travel once around the ring", "[schedule][estimate]") {
  PlanRequest request = request_of(3, 10, Pass::backward);
  RingPlan const without(request);
  request.sinks = 5;
  // 40 bytes for each of two shifts.
  Rates const rates{.flops = 16000, .near = {.latency = 0.5, .bandwidth = 80}};
  CHECK(near(RingPlan(request).estimate(rates).seconds - without.estimate(rates).seconds, 2 * (0.5 + 0.5)));
}

TEST_CASE("estimates of random plans are bounded by work and messages", "[schedule][estimate]") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    RingPlan const plan(annulus_test::random_plan_request(seed));
    CAPTURE(seed);
    Rates const rates{
        .flops = 50, .near = {.latency = 0.5, .bandwidth = 400}, .far = {.latency = 1, .bandwidth = 100}, .group = 3};
    PlanEstimate const estimate = plan.estimate(rates);
    double most = 0, all_messages = 0;
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      most = std::max(most, 2 * static_cast<double>(plan.multiply_adds(rank)) / rates.flops);
      for (int i = 0; i < plan.steps(); ++i) {
        all_messages +=
            2 * (1 + static_cast<double>(plan.step(rank, i).prefetched_bytes + plan.step(rank, i).carried_bytes) / 100);
        EstimatedStep const& step = estimate.step(rank, i);
        CHECK(step.end - step.begin >= step.compute - 1e-9);
        if (i > 0) CHECK(estimate.step(rank, i).begin == estimate.step(rank, i - 1).end);
      }
    }
    double all_work = 0;
    for (EstimatedStep const& step : estimate.of_all) all_work += step.compute;
    CHECK(estimate.seconds >= most - 1e-9);
    CHECK(estimate.seconds <= all_work + all_messages + 1e-9 + 2.0 * plan.ranks());
    // Faster links and cores never take longer.
    CHECK(plan.estimate({.flops = 100, .near = {.latency = 0.5, .bandwidth = 400}}).seconds <= estimate.seconds + 1e-9);
  }
}

TEST_CASE("rates that cannot be are refused", "[schedule][estimate]") {
  RingPlan const plan(request_of(2, 4));
  auto const estimated = [&](Rates const& rates) { return [&plan, rates] { plan.estimate(rates); }; };
  check_refused({{"work", "UnsupportedError", "rates: flops is 0; accepted: above 0", estimated({.flops = 0})},
                 {"bandwidth", "UnsupportedError", "bandwidth is -1", estimated({.near = {.bandwidth = -1}})},
                 {"latency", "UnsupportedError", "latency is -2", estimated({.far = {.latency = -2}})},
                 {"overlap", "UnsupportedError", "overlap is 1.5; accepted: 0 to 1", estimated({.overlap = 1.5})},
                 {"group", "UnsupportedError", "group is -1", estimated({.group = -1})}});
}

TEST_CASE("exchanges in groups come before the first step and after the last one", "[schedule][estimate][schedules]") {
  // A rank sends 640 bytes of keys to each of three others, then computes all of its pairs.
  PlanRequest request = request_of(4, 10, Pass::forward, Rotation::automatic);
  request.schedule = Schedule::all_gather;
  Rates const rates{.flops = 6400, .near = {.latency = 0.25, .bandwidth = 320}};
  PlanEstimate const gathered = RingPlan(request).estimate(rates);
  CHECK(near(gathered.seconds, 0.25 + 3 * 2 + 4));
  CHECK(near(gathered.step(3, 0).begin, 6.25));
  CHECK(near(gathered.exposed(), 6.25));
  // Tiles of two ranks: 640 bytes of queries, two steps of twice the work with a shift between, then 800 bytes of
  // state.
  request.schedule = Schedule::tiles;
  request.rotation = Rotation::keys;
  request.ranks_per_group = 2;
  CHECK(near(RingPlan(request).estimate(rates).seconds, 2.25 + 2 + 0.25 + 2 + 0.25 + 2.5));
}
