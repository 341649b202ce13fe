// Plans that need more than they must are found.

#include "annulus/schedule/ring_plan.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "support/least_plan.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::attempt;
using annulus_test::check_least;
using annulus_test::check_thrown;

namespace {

/// A plan with injected faults.
class FaultyPlan : public RingPlan {
 public:
  using RingPlan::RingPlan;

  std::function<void(Rank, int, PlannedStep&)> alter = [](Rank, int, PlannedStep&) {};
  std::optional<std::vector<int>> offsets;
  Index extra_prefetched_rows = 0, extra_bytes = 0;
  std::array<Index, 4> extra_carried_rows{};

  PlannedStep const& step(Rank rank, int i) const {
    PlannedStep& altered = given_.emplace_back(RingPlan::step(rank, std::min(i, RingPlan::steps() - 1)));
    alter(rank, i, altered);
    return altered;
  }
  int steps() const { return offsets ? static_cast<int>(offsets->size()) : RingPlan::steps(); }
  int offset(int i) const { return offsets ? (*offsets)[static_cast<std::size_t>(i)] : RingPlan::offset(i); }
  Index bytes_sent(Rank rank) const { return RingPlan::bytes_sent(rank) + extra_bytes; }
  friend Index prefetched_rows(FaultyPlan const& plan, Rank rank) {
    return detail::prefetched_rows(plan, rank) + plan.extra_prefetched_rows;
  }
  friend std::array<Index, 4> carried_rows(FaultyPlan const& plan, Rank rank) {
    auto rows = detail::carried_rows(plan, rank);
    for (std::size_t i = 0; i < 4; ++i) rows[i] += plan.extra_carried_rows[i];
    return rows;
  }

 private:
  mutable std::deque<PlannedStep> given_;  // references to steps stay valid
};

enum class Kind { travelling, direct };

FaultyPlan plan_of(Kind kind, Pass pass = Pass::backward, Rotation rotation = Rotation::keys) {
  return FaultyPlan({.pass = pass,
                     .query_lengths = {8, 8, 8, 8},
                     .key_lengths = {8, 8, 8, 8},
                     .rules = {.mask = kind == Kind::direct ? sliding_window(11, 0) : causal()},
                     .rotation = rotation});
}

void found(FaultyPlan const& plan, std::string const& finding) {
  check_thrown(attempt([&] { check_least(plan); }), "Error", finding);
}

/// Alters one step of one rank.
std::function<void(Rank, int, PlannedStep&)> at(Rank rank, int step, std::function<void(PlannedStep&)> change) {
  return [=](Rank r, int i, PlannedStep& planned) {
    if (r == rank && i == step) change(planned);
  };
}

}  // namespace

TEST_CASE("correct plans are accepted", "[schedule]") {
  for (Kind kind : {Kind::travelling, Kind::direct})
    for (Pass pass : {Pass::forward, Pass::backward})
      for (Rotation rotation : {Rotation::keys, Rotation::queries})
        CHECK_NOTHROW(check_least(plan_of(kind, pass, rotation)));
  REQUIRE(plan_of(Kind::travelling).steps() == 4);
  REQUIRE(plan_of(Kind::direct).steps() == 3);
}

TEST_CASE("a wrong order of steps is found", "[schedule]") {
  FaultyPlan plan = plan_of(Kind::direct);
  plan.offsets = {0, 2, 1};
  found(plan, "offset 1 of step 2 follows 2");
  plan.offsets = {1, 2, 3};
  found(plan, "the first step has offset 1");
  plan.offsets = {0, 1, 4};
  found(plan, "offset 4");
  plan.offsets = std::vector<int>{};
  found(plan, "0 steps");
}

TEST_CASE("a step that no rank needs is found", "[schedule]") {
  FaultyPlan plan = plan_of(Kind::direct);
  plan.offsets = {0, 1, 2, 3};
  found(plan, "step 3 is made, but no rank needs it");
}

TEST_CASE("a wrong owner, count or missing row is found", "[schedule]") {
  for (Kind kind : {Kind::travelling, Kind::direct}) {
    FaultyPlan plan = plan_of(kind);
    plan.alter = at(2, 1, [](PlannedStep& step) { step.owner = 3; });
    found(plan, "rank 2, step 1: the owner is 3, expected 1");
    plan.alter = at(2, 1, [](PlannedStep& step) { --step.visible_pairs; });
    found(plan, "visible pairs are planned");
    plan.alter = at(2, 1, [](PlannedStep& step) { ++step.held.begin; });
    found(plan, "needed are [0, 8)");
  }
}

TEST_CASE("rows that do not arrive as expected are found", "[schedule]") {
  FaultyPlan plan = plan_of(Kind::travelling);
  plan.alter = at(1, 0, [](PlannedStep& step) { --step.sent.end; });
  found(plan, "rank 1, step 0: rows [0, 7) are sent, later steps need [0, 8)");
  plan.alter = at(1, 0, [](PlannedStep& step) { ++step.sent.end; });
  found(plan, "rows [0, 9) are sent, later steps need [0, 8)");
  plan.alter = at(3, 3, [](PlannedStep& step) { step.sent = {0, 1}; });
  found(plan, "rank 3, step 3: rows [0, 1) are sent, later steps need [0, 0)");
  plan.alter = at(1, 0, [](PlannedStep& step) { ++step.held.begin; });
  found(plan, "rank 1, step 0");
}

TEST_CASE("more rows than later steps need are found", "[schedule]") {
  FaultyPlan plan = plan_of(Kind::direct);
  // Two ranks further on, the rows of rank 0 are seen from position 16 back to 5: the last 3 of them.
  REQUIRE(plan.step(1, 1).sent == RowRange{5, 8});
  plan.alter = at(1, 1, [](PlannedStep& step) { step.sent = {0, 8}; });
  found(plan, "rank 1, step 1: rows [0, 8) are sent, later steps need [5, 8)");
  plan.alter = at(2, 2, [](PlannedStep& step) { step.held = {0, 8}; });
  found(plan, "rows [0, 8) are held, needed are [5, 8)");
}

TEST_CASE("results for wrong rows are found", "[schedule]") {
  for (Kind kind : {Kind::travelling, Kind::direct}) {
    FaultyPlan plan = plan_of(kind);
    plan.alter = at(2, 1, [](PlannedStep& step) { step.carried = {1, 2}; });
    found(plan, "rank 2, step 1: results for rows [1, 2) leave");
    plan.alter = at(1, 1, [](PlannedStep& step) { step.arriving = {1, 2}; });
    found(plan, "which expects [1, 2)");
  }
}

TEST_CASE("byte counts that do not match the rows are found", "[schedule]") {
  FaultyPlan plan = plan_of(Kind::travelling);
  plan.alter = at(2, 1, [](PlannedStep& step) { ++step.prefetched_bytes; });
  found(plan, "rank 2, step 1: bytes");
  plan.alter = at(2, 1, [](PlannedStep& step) { --step.carried_bytes; });
  found(plan, "rank 2, step 1: bytes");
  plan.alter = [](Rank, int, PlannedStep&) {};
  plan.extra_bytes = 4;
  found(plan, "rank 0 sends");
}

TEST_CASE("buffers that are too small or too large are found", "[schedule]") {
  for (Index extra : {-1, 1}) {
    FaultyPlan plan = plan_of(Kind::travelling);
    plan.extra_prefetched_rows = extra;
    found(plan, "prefetched buffers");
    for (std::size_t buffer = 1; buffer < 4; ++buffer) {
      FaultyPlan carried = plan_of(Kind::direct);
      carried.extra_carried_rows[buffer] = extra;
      found(carried, "carried buffers");
    }
  }
}
