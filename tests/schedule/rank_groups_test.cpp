// Plans of the schedules in which ranks form groups: bytes in closed form, the choice of the group, refusals.

#include <string>
#include <utility>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;

namespace rank_groups_test {
namespace {

constexpr Index rows = 1024, dim = 128, element = 2, sum = 4;

PlanRequest request_of(int ranks, Schedule schedule, int group, Pass pass = Pass::forward, Index query_heads = 32,
                       Index kv_heads = 32) {
  std::vector<Index> const lengths(static_cast<std::size_t>(ranks), rows);
  return {.pass = pass,
          .shape = {.query_heads = query_heads, .kv_heads = kv_heads, .head_dim = dim, .value_dim = dim},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .schedule = schedule,
          .ranks_per_group = group,
          .element_bytes = element,
          .accumulator_bytes = sum,
          .lse_bytes = sum,
          .gradient_bytes = element};
}

/// Bytes that each rank sends, equal on all.
Index sent(PlanRequest const& request) {
  RingPlan const plan(request);
  for (Rank rank = 1; rank < plan.ranks(); ++rank) CHECK(plan.bytes_sent(rank) == plan.bytes_sent(0));
  return plan.bytes_sent(0);
}

/// Bytes of a shard: of queries, of keys and values, of a state, and of what the backward pass needs of queries.
struct Shards {
  Index query_heads, kv_heads;
  Index q() const { return rows * query_heads * dim * element; }
  Index kv() const { return rows * kv_heads * 2 * dim * element; }
  Index state() const { return rows * query_heads * (dim + 2) * sum; }
  Index known() const { return rows * query_heads * (2 * dim * element + 3 * sum); }
  Index dq() const { return rows * query_heads * dim * sum; }
  Index dkv() const { return rows * kv_heads * 2 * dim * sum; }
};

}  // namespace

TEST_CASE("tiles send (u-1) shards of queries and states, and (W/u-1) of keys", "[schedule][schedules]") {
  for (auto [query_heads, kv_heads] : {std::pair<Index, Index>{32, 32}, {32, 8}})
    for (auto [ranks, group] : {std::pair{64, 8}, {64, 4}, {12, 3}, {8, 8}, {8, 1}}) {
      Shards const shard{query_heads, kv_heads};
      Index const u = group, r = ranks / group;
      auto request = request_of(ranks, Schedule::tiles, group, Pass::forward, query_heads, kv_heads);
      request.rotation = Rotation::keys;
      CHECK(sent(request) == (u - 1) * (shard.q() + shard.state()) + (r - 1) * shard.kv());
      request.pass = Pass::backward;
      CHECK(sent(request) ==
            (u - 1) * (shard.known() + shard.dq()) + (r - 1) * shard.kv() + (r > 1 ? r : 0) * shard.dkv());
      request.rotation = Rotation::queries;
      CHECK(sent(request) ==
            (u - 1) * (shard.kv() + shard.dkv()) + (r - 1) * shard.known() + (r > 1 ? r : 0) * shard.dq());
    }
}

TEST_CASE("on 64 ranks tiles send at most 30 % of the ring's bytes, with 32:8 heads at most half",
          "[schedule][schedules]") {
  auto const share = [](Pass pass, Index kv_heads, int element_bytes) {
    auto const bytes = [&](Schedule schedule) {
      PlanRequest request = request_of(64, schedule, 0, pass, 32, kv_heads);
      request.element_bytes = element_bytes;
      return static_cast<double>(sent(request));
    };
    return std::pair{bytes(Schedule::tiles), bytes(Schedule::ring)};
  };
  auto const ratio = [](std::pair<double, double> bytes) { return bytes.first / bytes.second; };
  for (Pass pass : {Pass::forward, Pass::backward})
    for (int element_bytes : {2, 4}) CHECK(ratio(share(pass, 32, element_bytes)) <= 0.30);
  for (Pass pass : {Pass::forward, Pass::backward}) CHECK(ratio(share(pass, 8, 4)) <= 0.50);
  // Partial results travel in single precision: of 16-bit operands the forward pass alone sends 53 %, and no rectangle
  // of a x b shards, a b = 64, reaches half: a shard of queries and states has 6.06 times the bytes of one of keys.
  auto const forward = share(Pass::forward, 8, 2), backward = share(Pass::backward, 8, 2);
  CHECK(ratio(forward) <= 0.53);
  CHECK((forward.first + backward.first) / (forward.second + backward.second) <= 0.42);
}

TEST_CASE("two levels send shares of the heads in the group, and the rows of the group between groups",
          "[schedule][schedules]") {
  for (auto [query_heads, kv_heads] : {std::pair<Index, Index>{32, 32}, {32, 8}})
    for (auto [ranks, group] : {std::pair{64, 8}, {64, 4}, {8, 8}, {8, 2}}) {
      Shards const shard{query_heads, kv_heads};
      Index const u = group, r = ranks / group;
      auto request = request_of(ranks, Schedule::two_levels, group, Pass::forward, query_heads, kv_heads);
      request.rotation = Rotation::keys;
      Index const output = rows * query_heads * (dim * element + 2 * sum);
      CHECK(sent(request) == (u - 1) * (shard.q() + shard.kv() + output) / u + (r - 1) * shard.kv());
      request.pass = Pass::backward;
      CHECK(sent(request) == (u - 1) * (shard.known() + 2 * shard.kv() + shard.q()) / u + (r - 1) * shard.kv() +
                                 (r > 1 ? r : 0) * shard.dkv());
    }
}

TEST_CASE("an all-gather sends W-1 shards of keys, and sums of their gradients", "[schedule][schedules]") {
  Shards const shard{32, 8};
  CHECK(sent(request_of(6, Schedule::all_gather, 0, Pass::forward, 32, 8)) == 5 * shard.kv());
  CHECK(sent(request_of(6, Schedule::all_gather, 6, Pass::backward, 32, 8)) == 5 * (shard.kv() + shard.dkv()));
  CHECK(RingPlan(request_of(6, Schedule::all_gather, 0)).steps() == 1);
}

TEST_CASE("on a wire of 16 bits, float operands send the bytes of 16-bit operands, results those of floats",
          "[schedule][schedules]") {
  for (Pass pass : {Pass::forward, Pass::backward})
    for (auto [schedule, group] : {std::pair{Schedule::tiles, 4},
                                   {Schedule::all_gather, 0},
                                   {Schedule::double_ring, 4},
                                   {Schedule::two_levels, 4}})
      for (Wire wire : {Wire::bfloat16, Wire::half}) {
        PlanRequest request = request_of(8, schedule, group, pass, 32, 8);
        if (schedule != Schedule::all_gather) request.rotation = Rotation::keys;
        Index expected = sent(request);
        // Where heads are split, output or gradients return in the type of the operands; elsewhere, sums travel.
        Shards const shard{32, 8};
        if (schedule == Schedule::two_levels)
          expected += 3 * (pass == Pass::forward ? shard.q() : shard.q() + shard.kv()) / 4;
        request.element_bytes = request.gradient_bytes = 4;
        request.wire = wire;
        CHECK(sent(request) == expected);
      }
}

TEST_CASE("the group of 0 is the one that sends the fewest bytes", "[schedule][schedules]") {
  for (Schedule schedule : {Schedule::tiles, Schedule::two_levels})
    for (Pass pass : {Pass::forward, Pass::backward}) {
      RingPlan const chosen(request_of(24, schedule, 0, pass, 12, 12));
      CHECK(chosen.request().ranks_per_group == 0);
      for (int group : {1, 2, 3, 4, 6, 12})
        CHECK(chosen.total_bytes_sent() <= RingPlan(request_of(24, schedule, group, pass, 12, 12)).total_bytes_sent());
      CHECK(chosen.groups().size() > 1);
    }
}

TEST_CASE("all schedules do the same work", "[schedule][schedules]") {
  auto const work = [](Schedule schedule) {
    PlanRequest request = request_of(8, schedule, 0);
    request.rules.mask = causal();
    request.sharding = Zigzag{};
    RingPlan const plan(request);
    Index all = 0;
    for (Rank rank = 0; rank < 8; ++rank) all += plan.multiply_adds(rank);
    return all;
  };
  for (Schedule schedule : {Schedule::two_levels, Schedule::tiles, Schedule::all_gather})
    CHECK(work(schedule) == work(Schedule::ring));
}

TEST_CASE("groups and options that a schedule does not accept are refused", "[schedule][schedules]") {
  auto const planned = [](PlanRequest const& request) { return [request] { RingPlan{request}; }; };
  PlanRequest rotating = request_of(8, Schedule::all_gather, 0), reproducible = request_of(8, Schedule::two_levels, 0);
  rotating.rotation = Rotation::keys;
  reproducible.rules.reproducible = true;
  check_refused({
      {"3 of 8", "UnsupportedError",
       "tiles with groups of 3 ranks, on 8 ranks with 32 query heads and 32 kv heads; accepted: [1, 2, 4, 8]",
       planned(request_of(8, Schedule::tiles, 3))},
      {"-2 of 8", "UnsupportedError", "accepted: [1, 2, 4, 8]", planned(request_of(8, Schedule::tiles, -2))},
      {"heads", "UnsupportedError", "accepted: [1, 2, 4], which divide",
       planned(request_of(12, Schedule::two_levels, 3, Pass::forward, 32, 8))},
      {"all-gather", "UnsupportedError", "accepted: [8]", planned(request_of(8, Schedule::all_gather, 4))},
      {"ring", "UnsupportedError", "accepted: [1]", planned(request_of(8, Schedule::ring, 4))},
      {"rotation", "UnsupportedError", "no rows rotate", planned(rotating)},
      {"reproducible", "UnsupportedError", "accepted: schedule ring", planned(reproducible)},
  });
}

TEST_CASE("groups of two levels stay within the ranks that are near each other", "[schedule][schedules]") {
  PlanRequest request = request_of(64, Schedule::two_levels, 0);
  auto const group = [&](int near) {
    request.near = near;
    return RingPlan(request).groups().size();
  };
  CHECK(group(0) == 32);
  CHECK(group(1) == 32);
  CHECK(group(8) == 8);
  CHECK(group(6) == 2);
  request.ranks_per_group = 16;
  CHECK(group(8) == 16);
  request = request_of(64, Schedule::tiles, 0);
  int const of_tiles = RingPlan(request).groups().size();
  CHECK(group(2) == of_tiles);
}

}  // namespace rank_groups_test
