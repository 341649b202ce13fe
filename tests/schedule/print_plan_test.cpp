#include "annulus/schedule/print_plan.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

PlanRequest request(int ranks, Index local, Mask mask, Pass pass = Pass::forward, Rotation rotation = Rotation::keys) {
  std::vector<Index> const lengths(static_cast<std::size_t>(ranks), local);
  return {.pass = pass,
          .shape = {.query_heads = 2, .kv_heads = 1, .head_dim = 4, .value_dim = 3},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .rules = {.mask = mask},
          .rotation = rotation};
}

std::string printed(PlanRequest const& asked) {
  std::ostringstream out;
  print_plan(out, RingPlan(asked));
  return out.str();
}

}  // namespace

TEST_CASE("a plan of both directions prints the steps and bytes of each", "[print_plan]") {
  PlanRequest asked = request(3, 2, full());
  asked.shape.query_heads = 8;
  asked.shape.kv_heads = 4;
  asked.schedule = Schedule::both_directions;
  std::string text = printed(asked);
  CHECK_THAT(text, Catch::Matchers::StartsWith(
                       "forward pass over 3 ranks, contiguous sharding, keys travel in both directions\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("rank 1: 2 queries, 2 keys, kv heads 0 to 1 forwards\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("rank 1: 2 queries, 2 keys, kv heads 2 to 3 backwards\n"));
  // Two shifts of three ranks, rows of 7 floats for each kv head.
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring(
                       "bytes sent by all ranks: 1344, of which forwards 672 and backwards 672\n"));
  // Halves of one head are rows; with one row on each rank, the second half is empty.
  asked.shape.kv_heads = 1;
  text = printed(asked);
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("rank 1: 2 queries, 2 keys, keys 0 to 0 forwards\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("rank 1: 2 queries, 2 keys, keys 1 to 1 backwards\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring(
                       "bytes sent by all ranks: 336, of which forwards 168 and backwards 168\n"));
  asked = request(3, 1, full());
  asked.schedule = Schedule::both_directions;
  text = printed(asked);
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("rank 1: 1 queries, 1 keys, keys 0 to 0 forwards\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("rank 1: 1 queries, 1 keys, no keys backwards\n"));
}

TEST_CASE("a plan whose ranks cannot be divided into groups says so, with the accepted groups", "[print_plan]") {
  PlanRequest asked = request(7, 2, full());
  asked.schedule = Schedule::two_levels;
  CHECK_THAT(printed(asked), Catch::Matchers::ContainsSubstring(
                                 "\n  two levels: groups of 1 rank, which is a ring of all; accepted on 7 ranks with 2 "
                                 "query heads and 1 kv heads: groups of [1]\n"));
  asked.shape.query_heads = asked.shape.kv_heads = 7;
  CHECK_THAT(printed(asked), Catch::Matchers::ContainsSubstring("two levels: groups of 7 ranks, 1 on each ring"));
  asked.ranks_per_group = 1;
  CHECK_THAT(printed(asked), Catch::Matchers::ContainsSubstring(": groups of [1, 7]\n"));
  CHECK_THAT(printed(request(7, 2, full())), !Catch::Matchers::ContainsSubstring("groups"));
}

TEST_CASE("the complete text of a plan of two ranks", "[print_plan]") {
  // Two queries and keys per rank, causal: each rank sees 3 pairs of its own keys; rank 1 sees 4 pairs of rank 0's.
  // A pair costs 2 heads x (4 + 3) multiply-adds; a row of k and v has 7 floats. Buffers: k and v twice, and
  // accumulator, maximum and sum of the state, each aligned to 64 bytes. Operands: 2 x (2 x 4 + 7) floats; results: 2
  // heads x 2 queries of 3 floats of output and two of the log-sum-exp.
  CHECK(printed(request(2, 2, causal())) ==
        "forward pass over 2 ranks, contiguous sharding, keys travel\n"
        "  4 queries, 4 keys, batch 1, 2 query heads, 1 kv heads, head_dim 4, value_dim 3, 4 bytes an element\n"
        "  mask: causal\n"
        "rank 0: 2 queries, 2 keys\n"
        "      step     owner      full      band    ranges  elements  multiply-adds  rows ahead  bytes ahead  rows "
        "behind  bytes behind\n"
        "         0         0         0         1         0         0             42           2           56          "
        "  0             0\n"
        "         1         1         0         0         0         0              0           0            0          "
        "  0             0\n"
        "rank 1: 2 queries, 2 keys\n"
        "      step     owner      full      band    ranges  elements  multiply-adds  rows ahead  bytes ahead  rows "
        "behind  bytes behind\n"
        "         0         1         0         1         0         0             42           2           56          "
        "  0             0\n"
        "         1         0         1         0         0         0             56           0            0          "
        "  0             0\n"
        "2 steps of 2 are made\n"
        "      rank  multiply-adds  bytes sent  operand bytes  result bytes  peak buffer bytes  bytes needed\n"
        "         0             42          56            120            80                448           648\n"
        "         1             98          56            120            80                448           648\n"
        "bytes sent by all ranks: 112\n"
        "largest work of a rank over the mean: 1.4\n"
        "the same if ranks wait for each other in every step: 1.4\n");
}

TEST_CASE("work that no Index counts is printed as more than the largest one", "[print_plan]") {
  PlanRequest asked = request(2, Index{1} << 24, full());
  CHECK_THAT(printed(asked), !Catch::Matchers::ContainsSubstring("more than"));
  asked.shape = {.batch = 64, .query_heads = 64, .kv_heads = 64, .head_dim = 128, .value_dim = 128};
  CHECK_THAT(printed(asked), Catch::Matchers::ContainsSubstring("\n         0  more than 9223372036854775807  "));
}

TEST_CASE("carried rows are counted only in passes that carry results", "[print_plan]") {
  RingPlan const forward(request(3, 4, full())), backward(request(3, 4, full(), Pass::backward));
  for (int step = 0; step < 3; ++step) {
    CHECK(carried_rows_sent(forward, 1, step) == 0);
    CHECK(carried_rows_sent(backward, 1, step) == 4);
  }
}

TEST_CASE("tiles are counted by coverage", "[print_plan]") {
  auto const count = [](Mask mask, bool elementwise, Rank rank, int step) {
    PlanRequest asked = request(2, 6, mask);
    asked.elementwise = elementwise;
    return count_tiles(RingPlan(asked), rank, step);
  };
  CHECK(count(full(), false, 0, 1).full == 1);
  CHECK(count(causal(), false, 0, 0).band == 1);
  CHECK(count({.chunk = 4}, false, 0, 0).ranges == 1);
  CHECK(count(causal(), true, 0, 0).elements == 1);
  TileCounts const none = count(causal(), false, 0, 1);
  CHECK(none.full + none.band + none.ranges + none.elements == 0);
}

TEST_CASE("a printed plan lists the omitted steps", "[print_plan]") {
  // A window of one shard's length to the left: no rank needs keys from further back than its neighbour.
  PlanRequest const windowed = request(5, 4, {.causal = true, .window = {.left = 4}});
  CHECK(offsets_without_step(RingPlan(windowed)) == std::vector<int>{2, 3, 4});
  CHECK(
      printed(windowed).find(
          "2 steps of 5 are made; not made, since no rank needs the rows of the rank that many places back: 2 3 4\n") !=
      std::string::npos);
  CHECK(printed(windowed).find("mask: causal window(4, unbounded)\n") != std::string::npos);
  CHECK(offsets_without_step(RingPlan(request(5, 4, causal()))).empty());
  // The rank one place back is not needed, the others are: query positions are two shards after key positions.
  PlanRequest offset = request(4, 4, sliding_window(3, 3));
  offset.rules.query_offset = 8;
  std::vector<int> made;
  RingPlan const plan(offset);
  for (int step = 0; step < plan.steps(); ++step) made.push_back(plan.offset(step));
  for (int skipped : offsets_without_step(plan)) CHECK(std::find(made.begin(), made.end(), skipped) == made.end());
  CHECK(offsets_without_step(plan).size() + made.size() == 4);
}
