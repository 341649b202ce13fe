// The choice of a schedule by bytes and by estimated time.

#include "annulus/schedule/best_plan.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;

namespace best_plan_test {
namespace {

constexpr std::array schedules{Schedule::ring, Schedule::two_levels, Schedule::tiles, Schedule::all_gather};

PlanRequest request_of(int ranks, Index rows, Index heads, Mask const& mask = full()) {
  std::vector<Index> const lengths(static_cast<std::size_t>(ranks), rows);
  return {.shape = {.query_heads = heads, .kv_heads = heads, .head_dim = 64, .value_dim = 64},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .rules = {.mask = mask},
          .schedule = Schedule::automatic};
}

RingPlan plan_of(PlanRequest request, Schedule schedule) {
  request.schedule = schedule;
  return RingPlan(request);
}

}  // namespace

TEST_CASE("without rates the schedule that sends the fewest bytes is chosen", "[schedule][schedules]") {
  for (Index heads : {1, 3, 8})
    for (Mask const& mask : {full(), sliding_window(16, 0)})
      for (int ranks : {1, 2, 6, 8}) {
        PlanRequest const request = request_of(ranks, 64, heads, mask);
        RingPlan const best = best_plan(request);
        for (Schedule schedule : schedules)
          CHECK(best.total_bytes_sent() <= plan_of(request, schedule).total_bytes_sent());
        CHECK(best.request().schedule != Schedule::automatic);
      }
  // On a wire of 16 bits as well, on which a group pays less.
  PlanRequest on_wire = request_of(8, 64, 8);
  on_wire.wire = Wire::bfloat16;
  CHECK(best_plan(on_wire).request().schedule == Schedule::two_levels);
  CHECK(best_plan(on_wire).total_bytes_sent() < best_plan(request_of(8, 64, 8)).total_bytes_sent());
  // One head cannot be shared; a window of a few rows needs little of the ring.
  CHECK(best_plan(request_of(8, 64, 8)).request().schedule == Schedule::two_levels);
  CHECK(best_plan(request_of(8, 64, 1)).request().schedule == Schedule::tiles);
  CHECK(best_plan(request_of(8, 64, 1, sliding_window(16, 0))).request().schedule == Schedule::ring);
  CHECK(best_plan(request_of(1, 64, 8)).request().schedule == Schedule::ring);
}

TEST_CASE("with rates the schedule of the least estimated time is chosen", "[schedule][schedules]") {
  for (double latency : {0.0, 1e-5, 1e-2})
    for (double flops : {1e9, 1e13}) {
      Rates const rates{.flops = flops, .near = {.latency = latency, .bandwidth = 1e9}};
      PlanRequest const request = request_of(8, 64, 8);
      double const least = best_plan(request, rates).estimate(rates).seconds;
      for (Schedule schedule : schedules) CHECK(least <= plan_of(request, schedule).estimate(rates).seconds);
    }
  // Where only latency counts, one round is best; where work hides all messages, the ring is.
  CHECK(best_plan(request_of(8, 64, 8), Rates{.near = {.latency = 1}}).request().schedule == Schedule::all_gather);
  CHECK(best_plan(request_of(8, 64, 8), Rates{.flops = 1e6, .near = {.bandwidth = 1e9}}).request().schedule ==
        Schedule::ring);
}

TEST_CASE("what the choice does not accept is refused", "[schedule][schedules]") {
  PlanRequest request = request_of(8, 64, 8), grouped = request, tiles = request;
  grouped.ranks_per_group = 4;
  tiles.schedule = Schedule::tiles;
  auto const chosen = [](PlanRequest const& of, std::optional<Rates> const& rates) {
    return [=] { best_plan(of, rates); };
  };
  check_refused({
      {"a plan without a choice", "UnsupportedError", "automatic", [&] { RingPlan{request}; }},
      {"rates", "UnsupportedError", "flops is -1", chosen(request, Rates{.flops = -1})},
      {"groups", "UnsupportedError", "leaves their size to the schedule", chosen(grouped, {})},
      {"another schedule", "UnsupportedError", "accepted: schedule automatic", chosen(tiles, Rates{})},
  });
  request.rotation = Rotation::keys;
  CHECK(best_plan(request).rotation() == Rotation::keys);
  request.rules.reproducible = true;
  request.rules.reproducible_leaf = 32;
  CHECK(best_plan(request).request().schedule == Schedule::ring);
}

}  // namespace best_plan_test
