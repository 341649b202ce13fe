// Footprints of operands, reservation calendars and data hazards of the cost model.

#include "annulus/nki/cost/instruction_cost.hpp"
#include "annulus/nki/cost/timeline.hpp"
#include "support/catch.hpp"

using namespace annulus::nki;

TEST_CASE("the runs of an access are joined and in order", "[nki][cost]") {
  CHECK(runs_of(Access(0, {{512, 128}, {1, 512}}), true) == std::vector<Run>{{0, 512}});
  CHECK(runs_of(Access(0, {{512, 3}, {1, 512}}), false) == std::vector<Run>{{0, 1536}});
  CHECK(runs_of(Access(0, {{512, 3}, {1, 128}}), false) == std::vector<Run>{{0, 128}, {512, 128}, {1024, 128}});
  CHECK(runs_of(Access(0, {{512, 128}, {8, 2}, {1, 4}}), true) == std::vector<Run>{{0, 4}, {8, 4}});
  CHECK(runs_of(Access(0, {{512, 128}, {4, 2}, {1, 4}}), true) == std::vector<Run>{{0, 8}});
  CHECK(runs_of(Access(0, {{512, 128}, {0, 7}, {1, 4}}), true) == std::vector<Run>{{0, 4}});
  CHECK(runs_of(Access(0, {{512, 128}, {1, 4}, {0, 7}}), true) == std::vector<Run>{{0, 4}});
  CHECK(runs_of(Access(0, {{512, 128}, {-1, 4}}), true) == std::vector<Run>{{-3, 4}});
  // Columns before rows: the same elements in another order.
  CHECK(runs_of(Access(0, {{1, 4}, {4, 3}}), false) == std::vector<Run>{{0, 12}});
  // Too many runs to track: one run from the first to the last element.
  CHECK(runs_of(Access(0, {{2, 128}, {256, 64}}), false) == std::vector<Run>{{0, 127 * 2 + 63 * 256 + 1}});
}

TEST_CASE("the piece size divides all footprints of a buffer", "[nki][cost]") {
  Access access(0, {{512, 128}, {1, 96}});
  access.offset = Affine(64) + Affine::of(1, 160);
  CHECK(common_divisor(access, runs_of(access, true), 0) == 32);
  CHECK(common_divisor(access, runs_of(access, true), 24) == 8);
}

TEST_CASE("a calendar fills the gaps between remembered spans", "[nki][cost]") {
  Calendar calendar(2);
  CHECK(calendar.reserve(10, 5) == 10);
  CHECK(calendar.earliest(0, 5) == 0);
  CHECK(calendar.reserve(0, 5) == 0);
  CHECK(calendar.reserve(0, 5) == 5);  // the gap is full: one span from 0 to 15
  CHECK(calendar.reserve(0, 1) == 15);
  CHECK(calendar.reserve(20, 1) == 20);
  CHECK(calendar.earliest(0, 5) == 21);
  CHECK(calendar.earliest(0, 4) == 16);
  CHECK(calendar.reserve(30, 1) == 30);  // the third span: 16 is now the earliest begin
  CHECK(calendar.reserve(0, 1) == 16);
}

TEST_CASE("waiting times depend on the engine that waits", "[nki][cost]") {
  Uses uses;
  uses.note(Use::write, {10, 1});
  uses.note(Use::read, {20, 2});
  uses.note(Use::read, {15, 3});
  // A reader waits for the writer only, and on the writer's own engine for its pipeline.
  CHECK(uses.free_for(Use::read, {2, 1, 5}).seconds == 11);
  CHECK(uses.free_for(Use::read, {1, 1, 5}).seconds == 15);
  // A writer also waits for the readers, without a signal for those on its own engine.
  CHECK(uses.free_for(Use::write, {1, 1, 5}).seconds == 21);
  CHECK(uses.free_for(Use::write, {2, 1, 5}).seconds == 20);
  CHECK(uses.free_for(Use::write, {}).seconds == 20);
  CHECK(uses.free_for(Use::write, {}).engine == 2);
  CHECK(uses.free_for(Use::write, {2, 7, 0}).engine == 3);
}
