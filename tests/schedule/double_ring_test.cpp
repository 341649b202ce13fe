// Plans of a double ring: the way of the rows, links between groups, estimates, and the choice by rates.

#include <algorithm>
#include <vector>

#include "annulus/schedule/best_plan.hpp"
#include "schedule/random_plan_request.hpp"
#include "support/catch.hpp"
#include "support/least_plan.hpp"

using namespace annulus;
using namespace annulus_test;

namespace double_ring_test {
namespace {

/// 8 query heads read one kv head, so that keys are small.
PlanRequest request_of(int ranks, int group, Index rows = 16) {
  std::vector<Index> const lengths(static_cast<std::size_t>(ranks), rows);
  return {.shape = {.query_heads = 8, .kv_heads = 1, .head_dim = 8, .value_dim = 8},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .rotation = Rotation::keys,
          .schedule = Schedule::double_ring,
          .ranks_per_group = group};
}

}  // namespace

TEST_CASE("rows of a double ring travel around a group, then one group on", "[schedule][schedules]") {
  RingPlan const plan(request_of(6, 3));
  auto const owners_of = [&](Rank rank) {
    std::vector<Rank> owners;
    for (int i = 0; i < plan.steps(); ++i) owners.push_back(plan.step(rank, i).owner);
    return owners;
  };
  CHECK(owners_of(0) == std::vector<Rank>{0, 2, 1, 4, 3, 5});
  CHECK(owners_of(4) == std::vector<Rank>{4, 3, 5, 2, 1, 0});
  for (int group : {1, 2, 3, 4, 6, 12}) {
    RingPlan const other(request_of(12, group));
    CHECK(other.total_bytes_sent() == RingPlan(request_of(12, 12)).total_bytes_sent());
    for (int i = 0; i + 1 < other.steps(); ++i)
      for (Rank rank = 0; rank < 12; ++rank) {
        Rank const to = other.transport().rank_offsets.forward(rank, other.transport().prefetched_hop(i));
        CHECK((to / group != rank / group) == ((i + 1) % group == 0));
        CHECK(other.transport().rank_offsets.backward(to, other.transport().prefetched_hop(i)) == rank);
      }
  }
}

TEST_CASE("random plans of double rings are the least ones", "[schedule][schedules]") {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    PlanRequest request = random_plan_request(seed);
    int const ranks = static_cast<int>(request.query_lengths.size());
    request.schedule = Schedule::double_ring;
    request.zero_copy = request.rules.reproducible = false;
    for (request.ranks_per_group = 1; request.ranks_per_group <= ranks; ++request.ranks_per_group)
      if (ranks % request.ranks_per_group == 0) REQUIRE_NOTHROW(check_least(RingPlan(request)));
  }
}

TEST_CASE("a double ring waits for slow links only between groups", "[schedule][schedules][estimate]") {
  Rates const rates{.far = {.latency = 1}, .group = 2};
  PlanRequest request = request_of(8, 2);
  // Of 7 shifts 3 lead to another group; on a ring each has a sender whose next rank is in another group.
  CHECK(RingPlan(request).estimate(rates).seconds == Approx(3));
  request.schedule = Schedule::ring;
  request.ranks_per_group = 0;
  CHECK(RingPlan(request).estimate(rates).seconds == Approx(7));
}

TEST_CASE("a double ring is chosen where slow links decide and memory is not shared", "[schedule][schedules]") {
  Rates rates{.near = {.bandwidth = 1e4}, .far = {.bandwidth = 1e3}, .group = 4};
  PlanRequest request = request_of(8, 0);
  request.schedule = Schedule::automatic;
  RingPlan const best = best_plan(request, rates);
  CHECK(best.request().schedule == Schedule::double_ring);
  CHECK(best.request().ranks_per_group == 4);
  request.zero_copy = true;
  CHECK(best_plan(request, rates).request().schedule != Schedule::double_ring);
  request.zero_copy = false;
  rates.group = 3;
  CHECK(best_plan(request, rates).request().schedule != Schedule::double_ring);
  CHECK(best_plan(request).request().schedule != Schedule::double_ring);
}

}  // namespace double_ring_test
