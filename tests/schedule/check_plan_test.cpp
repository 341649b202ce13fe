// The checker of lists of actions: random plans have no fault, and planted faults are found.

#include "annulus/schedule/check_plan.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "annulus/schedule/pass_actions.hpp"
#include "schedule/planted_actions.hpp"
#include "schedule/random_schedule_request.hpp"
#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

namespace check_plan_test {
namespace {

/// A plan, and its lists of actions to plant faults in.
class Planted : public annulus_test::PlantedActions {
 public:
  explicit Planted(RingPlan const& plan) : PlantedActions(lists_of(plan)), plan_(plan) {}
  std::string fault() const { return find_fault(plan_, lists()).value_or("none"); }

 private:
  static std::vector<ActionList> lists_of(RingPlan const& plan) {
    std::vector<ActionList> lists;
    for (Rank rank = 0; rank < plan.ranks(); ++rank) lists.push_back(actions_of(plan, rank));
    return lists;
  }
  RingPlan plan_;
};

PlanRequest request_of(Pass pass, Rotation rotation = Rotation::keys, Mask const& mask = {}) {
  return {.pass = pass,
          .shape = {.query_heads = 2, .kv_heads = 2},
          .query_lengths = {2, 2, 2},
          .key_lengths = {2, 2, 2},
          .rules = {.mask = mask},
          .rotation = rotation};
}
PlanRequest zero_copy(PlanRequest request) {
  request.zero_copy = true;
  return request;
}
PlanRequest checked(PlanRequest request) {
  request.checked = true;
  return request;
}
PlanRequest reproducible(PlanRequest request) {
  request.rules.reproducible = true;
  request.rules.reproducible_leaf = 1;
  return request;
}
PlanRequest two_levels(Pass pass) {
  PlanRequest request = request_of(pass);
  request.query_lengths = request.key_lengths = {2, 2, 2, 2};
  request.schedule = Schedule::two_levels;
  request.ranks_per_group = 2;
  return request;
}

void found(PlanRequest const& request, std::string const& message, std::function<void(Planted&)> const& plant) {
  Planted lists{RingPlan(request)};
  REQUIRE(lists.fault() == "none");
  plant(lists);
  CHECK_THAT(lists.fault(), ContainsSubstring(message));
}

bool is_carried(Shift const& shift) { return shift.channel == Channel::carried; }

}  // namespace

TEST_CASE("random plans of all schedules have no fault", "[schedule]") {
  int made = 0, refused = 0, most_ranks = 0;
  std::array<int, 7> schedules{};
  for (std::uint64_t seed = 0; made < 20000; ++seed) {
    PlanRequest const request = annulus_test::random_schedule_request(seed);
    std::optional<RingPlan> plan;
    try {
      plan.emplace(request);
    } catch (UnsupportedError const&) {
      ++refused;
      continue;
    }
    CAPTURE(seed);
    REQUIRE_NOTHROW(check_plan(*plan));
    ++made;
    ++schedules[static_cast<std::size_t>(request.schedule)];
    most_ranks = std::max(most_ranks, plan->ranks());
  }
  CHECK(refused < made / 5);
  CHECK(most_ranks == 64);
  for (Schedule const schedule : {Schedule::ring, Schedule::both_directions, Schedule::two_levels, Schedule::tiles,
                                  Schedule::all_gather, Schedule::double_ring})
    CHECK(schedules[static_cast<std::size_t>(schedule)] > 1500);
}

TEST_CASE("work that is missing, made twice or planned otherwise is found", "[schedule]") {
  PlanRequest const forward = request_of(Pass::forward);
  found(forward, "rank 1, action", [](Planted& p) { p.drop<Work>(1, 1); });
  found(forward, "have seen 4 rows, expected 6", [](Planted& p) { p.drop<Work>(1, 1); });
  found(forward, "have seen 8 rows, expected 6", [](Planted& p) { p.repeat<Work>(1, 1); });
  found(forward, "overwrites sums of query 2 that nothing has used", [](Planted& p) {
    // The same results, computed twice.
    p.repeat<Work>(1, 2);
    p.what<Work>(1, 3).opens_queries = true;
  });
  found(forward, "works on rows [1, 2) of rank 0; planned are [0, 2) of rank 0",
        [](Planted& p) { ++p.what<Work>(1, 1).keys.rows.begin; });
  found(forward, "works on rows [0, 2) of rank 2; planned are", [](Planted& p) { p.what<Work>(1, 1).keys.owner = 2; });
  found(forward, "multiply-adds, planned are", [](Planted& p) { ++p.what<Work>(2).multiply_adds; });
  found(forward, "step 0: work queries [0, 2) of rank 1 x keys [0, 2) of rank 1",
        [](Planted& p) { p.what<Work>(1).query_sums.slot = 77; });
}

TEST_CASE("rows that are read before they are there are found", "[schedule]") {
  PlanRequest const forward = request_of(Pass::forward), backward = request_of(Pass::backward);
  found(forward, "reads rows to which nothing has been written", [](Planted& p) { p.drop<Pack>(0); });
  found(forward, "reads rows that have not been awaited",
        [](Planted& p) { std::iter_swap(p.find<Await>(2), p.find<Work>(2, 1)); });
  found(forward, "has not ended when it is started again", [](Planted& p) { p.drop<Await>(2); });
  found(zero_copy(forward), "is still pending", [](Planted& p) { p.drop<Release>(1, 1); });
  found(forward, "reads key 2, expected key 0", [](Planted& p) { p.what<Work>(1, 1).keys.from.slot = -1; });
  found(backward, "delta has not been computed", [](Planted& p) { p.drop<Take>(1); });
  PlanRequest rounded = forward;
  rounded.wire = Wire::bfloat16;
  found(rounded, "the rows lack k in the type of the operands",
        [](Planted& p) { p.what<Work>(1, 1).keys.from.slot = p.what<Shift>(1).in.slot; });
  found(rounded, "q has not been rounded", [](Planted& p) { p.drop<Take>(1); });
  found(rounded, "to which nothing has been written", [](Planted& p) { p.drop<Copy>(1); });
}

TEST_CASE("rows that are overwritten too early are found", "[schedule]") {
  PlanRequest const forward = request_of(Pass::forward);
  found(forward, "overwrites rows that are being sent", [](Planted& p) { p.put_before<Work>(1, p.what<Pack>(1)); });
  found(forward, "overwrites rows that are to arrive", [](Planted& p) {
    Pack pack = p.what<Pack>(1);
    pack.into.slot = p.what<Shift>(1).in.slot;
    p.put_before<Work>(1, pack);
  });
  found(zero_copy(forward), "other ranks may read: the slot has not been reclaimed",
        [](Planted& p) { p.drop<Reclaim>(1); });
  found(zero_copy(request_of(Pass::backward)), "other ranks may read: the slot has not been reclaimed",
        [](Planted& p) { p.drop<Reclaim>(1, 3); });
  found(zero_copy(forward), "to which nothing has been written", [](Planted& p) {
    for (Rank rank = 0; rank < 3; ++rank) std::iter_swap(p.find<Pack>(rank), p.find<Open>(rank));
  });
  found(zero_copy(forward), "of rows 2, which has 0",
        [](Planted& p) { std::iter_swap(p.find<Release>(1), p.find<Work>(1, 1)); });
  found(zero_copy(forward), "the slot has not been released", [](Planted& p) { p.drop<Release>(1); });
  found(zero_copy(forward), "writes to rows in another rank's memory", [](Planted& p) {
    Pack pack = p.what<Pack>(1);
    pack.into.slot = p.what<Open>(1).shift.in.slot;
    p.put_before<Work>(1, pack, 1);
  });
}

TEST_CASE("exchanges that do not match are found", "[schedule]") {
  PlanRequest const forward = request_of(Pass::forward), backward = request_of(Pass::backward);
  found(forward, "another rank has started it with hop",
        [](Planted& p) { p.what<Shift>(1).hop = p.what<Shift>(1).sender = 2; });
  found(forward, "a hop of 3 on 3 ranks", [](Planted& p) { p.what<Shift>(1).hop = 3; });
  found(forward, "the rows come from rank 0, expected are those of rank 2",
        [](Planted& p) { p.what<Shift>(1).sender = 2; });
  found(forward, "1 rows are sent, 2 are expected", [](Planted& p) { ++p.what<Shift>(1).out.rows.begin; });
  found(forward, "rows [1, 3) of rows 0, which has 2", [](Planted& p) { p.what<Shift>(1).out.rows = {1, 3}; });
  found(forward, "one of the two ranks sends no rows", [](Planted& p) { p.what<Shift>(1).out = {}; });
  found(forward, "the checksum is of exchange 7 of lane 0, expected is that of exchange 0",
        [](Planted& p) { p.what<Shift>(1).leaving_code = 7; });
  found(backward, "other parts are sent than are expected",
        [](Planted& p) { p.slot(1, SlotKind::results, 3).layout.parts[0].dim = 2; });
  found(checked(forward), "checksum 3 of 3", [](Planted& p) { p.what<Shift>(1).arriving_slot = 3; });
  found(forward, "wait for each other, or for actions that are missing", [](Planted& p) {
    p.drop<Shift>(1, 1);
    p.drop<Await>(1, 1);
    p.drop<Work>(1, 2);
    p.drop<Finish>(1);
  });
  found(zero_copy(forward), "rank 1, at the end: has started 0 exchanges of a channel, other ranks 1", [](Planted& p) {
    Open const nothing{{.channel = Channel::carried}};
    for (Rank rank : {0, 2}) p.put_before<Finish>(rank, nothing);
    p.put_before<Finish>(0, Await{0});
    p.put_before<Finish>(0, Release{0});
  });
}

TEST_CASE("ranks that wait for each other are found", "[schedule]") {
  std::string const message = "these ranks wait for each other";
  found(zero_copy(request_of(Pass::backward)), message, [](Planted& p) {
    // No rank reads the window that it sees before it has reclaimed the one that it shows.
    for (Rank rank = 0; rank < 3; ++rank) p.put_before<Work>(rank, Reclaim{p.what<Open>(rank).shift.out.slot}, 1);
  });
}

TEST_CASE("sums that are opened, closed or joined at the wrong time are found", "[schedule]") {
  PlanRequest const forward = request_of(Pass::forward), backward = request_of(Pass::backward);
  found(forward, "overwrites sums of query 2 that nothing has used",
        [](Planted& p) { p.what<Work>(1, 1).opens_queries = true; });
  found(forward, "in which no sums have been opened", [](Planted& p) { p.what<Work>(1).opens_queries = false; });
  found(forward, "adds to sums that have been closed", [](Planted& p) { p.what<Work>(1).closes_queries = true; });
  found(backward, "sends sums that have been closed", [](Planted& p) { p.what<Work>(1).closes_keys = true; });
  found(backward, "overwrites sums of key 0 that nothing has used", [](Planted& p) { p.drop<Join>(1); });
  found(backward, "have seen", [](Planted& p) { p.repeat<Join>(1); });
  found(backward, "adds key 0 to sums of key 1", [](Planted& p) {
    Join& join = p.what<Join>(1);
    join.from.rows = {0, 1};
    join.into.rows = {1, 2};
  });
  found(backward, "have not been used", [](Planted& p) { p.drop<Finish>(1); });
  found(forward, "is finished a second time", [](Planted& p) { p.repeat<Finish>(1); });
  found(forward, "the result has 2 rows", [](Planted& p) { p.what<Finish>(1).rows = {1, 3}; });
  found(backward, "sums of key", [](Planted& p) { p.what<Finish>(1, 1).from.slot = p.what<Shift>(1, 1).out.slot; });
}

TEST_CASE("results that go to the wrong owner are found", "[schedule]") {
  PlanRequest const local = request_of(Pass::backward, Rotation::keys, sliding_window(4, 4));
  found(local, "adds key", [](Planted& p) {
    for (Rank rank = 0; rank < 3; ++rank) {
      Shift& shift = p.what<Shift>(rank, 0, is_carried);
      shift.hop = 3 - shift.hop;
      shift.sender = annulus::detail::rank_at(rank - shift.hop, 3);
    }
  });
}

TEST_CASE("faults of groups are found", "[schedule]") {
  found(two_levels(Pass::forward), "reads query 2, expected query 0", [](Planted& p) { p.drop<Take>(1); });
  found(two_levels(Pass::forward), "of head share 2", [](Planted& p) { p.what<Pack>(1, 0).heads.place = 1; });
  found(two_levels(Pass::forward), "writes query", [](Planted& p) { p.what<Write>(1).heads.place = 1; });
  found(two_levels(Pass::forward), "rows of results are not finished: 2 of 4", [](Planted& p) { p.drop<Write>(3); });
  PlanRequest gathering = checked(request_of(Pass::forward));
  gathering.schedule = Schedule::all_gather;
  gathering.rotation = Rotation::automatic;
  found(gathering, "overwrites checksums that are to arrive",
        [](Planted& p) { p.what<Shift>(0, 1).arriving_slot = p.what<Shift>(0).arriving_slot; });
  found(gathering, "the checksum is of other rows", [](Planted& p) { p.what<Shift>(0).sealed = true; });
}

TEST_CASE("leaves that are joined in another order are found", "[schedule]") {
  PlanRequest const request = reproducible(request_of(Pass::forward));
  found(request, "are not joined in the order of the tree",
        [](Planted& p) { std::swap(p.what<Work>(1, 0).query_sums, p.what<Work>(1, 1).query_sums); });
  found(request, "leaf 9 of 6", [](Planted& p) { p.what<Work>(1).keys.leaf = 9; });
  found(reproducible(request_of(Pass::backward)), "node 9 of", [](Planted& p) { p.what<Copy>(1).into.node = 9; });
  PlanRequest longer = reproducible(request_of(Pass::backward));
  longer.query_lengths = longer.key_lengths = {3, 3, 3};
  found(longer, "overwrites sums of key 0 that nothing has used", [](Planted& p) {
    auto const travels = [](Copy const& copy) { return copy.into.node == 1; };
    p.what<Copy>(1, 0, travels).into.node = 0;
  });
}

TEST_CASE("gradients of joint keys and sink logits that are wrong are found", "[schedule]") {
  PlanRequest request = request_of(Pass::backward);
  request.joint_keys = 2;
  request.sinks = 1;
  found(request, "sums of sink logits have seen", [](Planted& p) { ++p.what<SinkShare>(1).queries.begin; });
  found(request, "sums of query 2 have seen 6 rows, expected 8", [](Planted& p) { p.drop<Work>(1); });
  found(request, "sums of joint keys have seen 4 rows, expected 6", [](Planted& p) {
    auto const into_sum = [](Join const& join) { return join.into.rows.begin == 3; };
    p.drop<Join>(1, 0, into_sum);
  });
  found(request, "sums of query", [](Planted& p) {
    for (Rank rank = 0; rank < 3; ++rank) p.drop<Work>(rank);
  });
}

TEST_CASE("bytes that are not those of the plan are found", "[schedule]") {
  PlanRequest const forward = request_of(Pass::forward);
  found(forward, "rows [0, 2) of rows 1, which has 1", [](Planted& p) { --p.slot(2, SlotKind::rows, 1).rows; });
  found(forward, "bytes, planned are", [](Planted& p) { p.slot(2, SlotKind::rows, 1).rows += 64; });
  found(forward, "sends", [](Planted& p) {
    for (Rank rank = 0; rank < 3; ++rank) {
      p.put_before<Finish>(rank, Shift{.out = p.what<Shift>(rank).out,
                                       .in = p.what<Shift>(rank).in,
                                       .sender = p.what<Shift>(rank).sender,
                                       .exchange = 0});
      p.put_before<Finish>(rank, Await{0});
    }
  });
}

}  // namespace check_plan_test
