#include "annulus/schedule/ring_plan.hpp"

#include <set>
#include <vector>

#include "annulus/schedule/check_plan.hpp"
#include "schedule/random_plan_request.hpp"
#include "support/catch.hpp"
#include "support/least_plan.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

std::vector<int> offsets_of(RingPlan const& plan) {
  std::vector<int> offsets;
  for (int i = 0; i < plan.steps(); ++i) offsets.push_back(plan.offset(i));
  return offsets;
}

PlanRequest equal_shards(int ranks, Index rows, Mask const& mask, Rotation rotation = Rotation::keys) {
  return {.query_lengths = std::vector<Index>(static_cast<std::size_t>(ranks), rows),
          .key_lengths = std::vector<Index>(static_cast<std::size_t>(ranks), rows),
          .rules = {.mask = mask},
          .rotation = rotation};
}

std::function<void()> planned(PlanRequest const& request) {
  return [request] { RingPlan{request}; };
}

/// Number of visible pairs between all queries and all keys, tested one by one.
Index visible_pairs(RingPlan const& plan) {
  Index pairs = 0;
  for (Index q = 0; q < plan.global_queries(); ++q)
    for (Index k = 0; k < plan.global_keys(); ++k)
      pairs += plan.request().rules.mask.visible(q + plan.request().rules.query_offset.value_or(0), k) ? 1 : 0;
  return pairs;
}

}  // namespace

TEST_CASE("random plans are the least ones and cover all visible pairs", "[schedule]") {
  int direct = 0, travelling = 0, queries_rotate = 0, early = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    RingPlan const plan(random_plan_request(seed));
    CAPTURE(seed);
    REQUIRE_NOTHROW(check_least(plan));
    direct += plan.transport().direct ? 1 : 0;
    travelling += plan.transport().direct ? 0 : 1;
    queries_rotate += plan.rotation() == Rotation::queries ? 1 : 0;
    early += plan.steps() < plan.ranks() ? 1 : 0;
    Index pairs = 0;
    for (Rank rank = 0; rank < plan.ranks(); ++rank)
      for (int i = 0; i < plan.steps(); ++i) pairs += plan.step(rank, i).visible_pairs;
    REQUIRE(pairs == visible_pairs(plan));
  }
  CHECK((direct > 300 && travelling > 300 && queries_rotate > 300 && early > 300));
}

TEST_CASE("equal requests give equal plans", "[schedule]") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    RingPlan const first(random_plan_request(seed)), second(random_plan_request(seed));
    CHECK(offsets_of(first) == offsets_of(second));
    CHECK(first.rotation() == second.rotation());
    CHECK(first.total_bytes_sent() == second.total_bytes_sent());
  }
}

TEST_CASE("without a local mask every rank meets every owner", "[schedule]") {
  for (int ranks : {1, 2, 3, 7, 16}) {
    RingPlan const plan(equal_shards(ranks, 4, full()));
    CHECK(plan.steps() == ranks);
    for (Rank rank = 0; rank < ranks; ++rank) {
      std::set<Rank> met;
      for (int i = 0; i < plan.steps(); ++i) met.insert(plan.step(rank, i).owner);
      CHECK(met.size() == static_cast<std::size_t>(ranks));
      CHECK(plan.step(rank, 0).owner == rank);
    }
  }
}

TEST_CASE("with a window over contiguous shards the ring stops early", "[schedule]") {
  Rotation const rotation = GENERATE(Rotation::keys, Rotation::queries);
  auto const steps = [&](Index left, Index right) {
    return offsets_of(RingPlan(equal_shards(8, 16, sliding_window(left, right), rotation)));
  };
  bool const keys = rotation == Rotation::keys;
  // A rank meets the owners before it (pass-KV) or after it (pass-Q), which are 8 - offset ranks ahead.
  CHECK(steps(0, 0) == std::vector<int>{0});
  CHECK(steps(1, 0) == (keys ? std::vector<int>{0, 1} : std::vector<int>{0, 7}));
  CHECK(steps(16, 0) == (keys ? std::vector<int>{0, 1} : std::vector<int>{0, 7}));
  CHECK(steps(17, 0) == (keys ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 6, 7}));
  CHECK(steps(20, 1) == (keys ? std::vector<int>{0, 1, 2, 7} : std::vector<int>{0, 1, 6, 7}));
  CHECK(steps(1000, 0) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("chunks that end with the shards need no exchange", "[schedule]") {
  RingPlan const plan(equal_shards(4, 8, {.chunk = 8}));
  CHECK(plan.steps() == 1);
  CHECK(plan.total_bytes_sent() == 0);
  CHECK(RingPlan(equal_shards(4, 8, {.chunk = 16})).steps() == 3);  // even ranks need the next, odd ones the previous
}

TEST_CASE("without visible pairs only the step on the rank's own rows remains", "[schedule]") {
  PlanRequest request = equal_shards(4, 8, causal());
  request.rules.query_offset = -1000;
  RingPlan const plan(request);
  CHECK(plan.steps() == 1);
  CHECK(plan.step(2, 0).visible_pairs == 0);
  CHECK(plan.tiles(2, 0).empty());
}

TEST_CASE("one rank exchanges nothing", "[schedule]") {
  for (Pass pass : {Pass::forward, Pass::backward})
    for (Rotation rotation : {Rotation::keys, Rotation::queries, Rotation::automatic}) {
      PlanRequest request = equal_shards(1, 8, causal(), rotation);
      request.pass = pass;
      request.sinks = 2;
      RingPlan const plan(request);
      CHECK(plan.steps() == 1);
      CHECK(plan.bytes_sent(0) == 0);
      CHECK(detail::prefetched_rows(plan, 0) == 0);
      CHECK_NOTHROW(check_least(plan));
      CHECK_NOTHROW(check_plan(plan));
    }
}

TEST_CASE("random plans of both directions: each lane is the least one, together they are the ring", "[schedule]") {
  int backwards = 0, same = 0, halves_rows = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    PlanRequest request = random_plan_request(seed);
    CAPTURE(seed);
    RingPlan const ring(request);
    request.schedule = Schedule::both_directions;
    RingPlan const both(request);
    REQUIRE(both.lanes().size() == 2);
    bool const of_rows = request.shape.kv_heads % 2 == 1;
    halves_rows += of_rows ? 1 : 0;
    CHECK(both.lanes()[0].kv_heads().begin == 0);
    CHECK(both.lanes()[0].kv_heads().end == (of_rows ? request.shape.kv_heads : both.lanes()[1].kv_heads().begin));
    CHECK(both.lanes()[1].kv_heads().end == request.shape.kv_heads);
    CHECK(both.lanes()[1].query_heads().end == request.shape.query_heads);
    for (Rank rank = 0; rank < ring.ranks(); ++rank) {
      RowRange const first = both.lanes()[0].rotating_rows(rank), second = both.lanes()[1].rotating_rows(rank);
      CHECK(first.begin == 0);
      CHECK(first.end == (of_rows ? second.begin : second.end));
      CHECK(second.end == ring.rotating_rows(rank).end);
    }
    for (RingPlan const& lane : both.lanes()) REQUIRE_NOTHROW(check_least(lane));
    backwards += both.steps() > 2 && both.lanes()[1].offset(1) > both.lanes()[1].offset(2) ? 1 : 0;
    REQUIRE(both.steps() == ring.steps());
    // Document ids travel with both halves of the heads, and rows that later steps do not need are dropped in another
    // order.
    bool const same_rows = (of_rows || !request.document_ids) && !ring.transport().direct;
    same += same_rows ? 1 : 0;
    if (same_rows) CHECK(both.total_bytes_sent() == ring.total_bytes_sent());
    for (Rank rank = 0; rank < ring.ranks(); ++rank) {
      CHECK(both.multiply_adds(rank) == ring.multiply_adds(rank));
      CHECK(both.bytes_sent(rank) == both.lanes()[0].bytes_sent(rank) + both.lanes()[1].bytes_sent(rank));
    }
  }
  CHECK(backwards > 100);
  CHECK(same > 100);
  CHECK(halves_rows > 100);
}

TEST_CASE("empty sequences have a plan", "[schedule]") {
  for (Pass pass : {Pass::forward, Pass::backward}) {
    PlanRequest request = equal_shards(3, 0, full());
    request.pass = pass;
    CHECK(RingPlan(request).steps() == 1);
    request.key_lengths = {0, 5, 0};
    CHECK(RingPlan(request).steps() == 1);
    CHECK_NOTHROW(check_least(RingPlan(request)));
    CHECK_NOTHROW(check_plan(RingPlan(request)));
    request.query_lengths = {0, 0, 4};
    CHECK(offsets_of(RingPlan(request)) == std::vector<int>{0, 1});
    CHECK_NOTHROW(check_least(RingPlan(request)));
    CHECK_NOTHROW(check_plan(RingPlan(request)));
  }
}

TEST_CASE("tiles lie within the held rows", "[schedule]") {
  // Rank 2 needs the last 3 of rank 1's 8 rows, and receives only these.
  RingPlan const plan(equal_shards(4, 8, sliding_window(3, 0)));
  REQUIRE(plan.steps() == 2);
  CHECK(plan.step(2, 1).held == RowRange{5, 8});
  auto const tiles = plan.tiles(2, 1);
  REQUIRE(tiles.size() == 1);
  CHECK((tiles[0].key_begin == 0 && tiles[0].key_count == 3 && tiles[0].key_position == 13));
  CHECK(tiles[0].keys_of(plan.request().rules.mask, 0) == RowRange{0, 3});
  CHECK(tiles[0].keys_of(plan.request().rules.mask, 2) == RowRange{2, 3});
}

TEST_CASE("the work of a pass is proportional to its visible pairs", "[schedule]") {
  PlanRequest request = equal_shards(4, 8, full());
  request.shape = {.batch = 2, .query_heads = 6, .kv_heads = 2, .head_dim = 5, .value_dim = 3};
  CHECK(RingPlan(request).multiply_adds(1) == 8 * 32 * 2 * 6 * (5 + 3));
  CHECK(RingPlan(request).imbalance() == 1.0);
  request.pass = Pass::backward;
  CHECK(RingPlan(request).multiply_adds(1) == 8 * 32 * 2 * 6 * (3 * 5 + 2 * 3));
}

TEST_CASE("balance of causal work", "[schedule]") {
  int const ranks = 8;
  Index const rows = 16;
  auto const imbalance = [&](Sharding const& sharding) {
    PlanRequest request = equal_shards(ranks, rows, causal());
    request.sharding = sharding;
    return RingPlan(request).imbalance();
  };
  // The last rank's queries see all shards before it: rows^2 (ranks - 1) pairs and its own triangle.
  double const last = rows * rows * (ranks - 1) + rows * (rows + 1) / 2.0;
  double const mean = ranks * rows * (ranks * rows + 1) / 2.0 / ranks;
  CHECK(imbalance({}) == Approx(last / mean));
  CHECK(imbalance(Zigzag{}) == 1.0);
  // The work of stripes differs by the diagonal: at most `rows` pairs per rank.
  CHECK(imbalance(Striped{}) < 1 + rows * ranks / mean);
  CHECK(RingPlan(equal_shards(3, 0, full())).imbalance() == 1.0);
}

TEST_CASE("ranks that wait for the queries of one rank count as imbalance of the steps", "[schedule]") {
  PlanRequest decode = equal_shards(4, 8, full());
  decode.query_lengths = {1, 0, 0, 0};
  decode.rotation = Rotation::queries;
  RingPlan const plan(decode);
  REQUIRE(plan.steps() == 4);
  CHECK(plan.imbalance() == 1.0);
  CHECK(plan.step_imbalance() == 4.0);
  PlanRequest causal_request = equal_shards(4, 8, causal());
  CHECK(RingPlan(causal_request).step_imbalance() == RingPlan(causal_request).imbalance());
  causal_request.sharding = Zigzag{};
  CHECK(RingPlan(causal_request).step_imbalance() == 1.0);
  CHECK(RingPlan(equal_shards(3, 0, full())).step_imbalance() == 1.0);
}

TEST_CASE("requests whose lengths or map are wrong, or whose sizes overflow, are refused", "[schedule]") {
  ExplicitMap const map{.queries = {{0, 1}, {2}}, .keys = {}};
  Index const huge = Index{1} << 32, most = detail::largest_index;
  // No buffer is too large, but all messages of a pass together are.
  std::vector<Index> const long_shards(64, Index{1} << 30);
  check_refused({
      {"no ranks", "ShapeError", "query lengths of 0 ranks", planned({})},
      {"other ranks", "ShapeError", "2 ranks and key lengths of 1",
       planned({.query_lengths = {4, 4}, .key_lengths = {4}})},
      {"negative queries", "ShapeError", "-1 rows", planned({.query_lengths = {4, -1}, .key_lengths = {4, 4}})},
      {"negative keys", "ShapeError", "-2 rows", planned({.query_lengths = {4, 4}, .key_lengths = {-2, 4}})},
      {"no zigzag", "ShapeError", "[3, 6] rows, expected [5, 4]",
       planned({.query_lengths = {5, 4}, .key_lengths = {3, 6}, .sharding = Zigzag{}})},
      {"no stripes", "ShapeError", "[4, 5] rows, expected [5, 4]",
       planned({.query_lengths = {4, 5}, .key_lengths = {4, 4}, .sharding = Striped{}})},
      {"queries outside the map", "ShapeError", "queries",
       planned({.query_lengths = {2, 2}, .key_lengths = {2, 1}, .sharding = map})},
      {"keys outside the map", "ShapeError", "keys",
       planned({.query_lengths = {2, 1}, .key_lengths = {3, 3}, .sharding = map})},
      {"pairs", "ShapeError", "a step of 4294967296 queries and 4294967296 keys",
       planned({.query_lengths = {huge}, .key_lengths = {huge}})},
      {"positions", "ShapeError", "288230376151711744 positions",
       planned({.query_lengths = {Index{1} << 57, Index{1} << 57}, .key_lengths = {0, 0}})},
      {"rows", "ShapeError", "9223372036854775807 positions",
       planned({.query_lengths = {0, 0, 0}, .key_lengths = {most, most, 2}})},
      {"batch and heads", "ShapeError", "batch 4294967296",
       planned({.shape = {.batch = huge, .query_heads = huge}, .query_lengths = {0}, .key_lengths = {0}})},
      {"dims", "ShapeError", "head_dim 4294967296",
       planned({.shape = {.head_dim = huge, .value_dim = huge}, .query_lengths = {huge}, .key_lengths = {1}})},
      {"sink logits", "ShapeError", "1152921504606846976 sink logits",
       planned({.query_lengths = {1}, .key_lengths = {1}, .sinks = Index{1} << 60})},
      {"gradients of a bias", "ShapeError", "8 rows",
       planned({.query_lengths = {8}, .key_lengths = {8}, .bias_gradient_elements = Index{1} << 60})},
      {"an extent of 0 hides no overflow of the others", "ShapeError", "batch 0",
       planned({.shape = {.batch = 0, .head_dim = most}, .query_lengths = {1}, .key_lengths = {1}})},
      {"messages", "ShapeError", "on 64 ranks",
       planned({.shape = {.head_dim = Index{1} << 24}, .query_lengths = long_shards, .key_lengths = long_shards})},
  });
}

TEST_CASE("the work of a plan saturates", "[schedule]") {
  PlanRequest const much{.shape = {.batch = 64, .query_heads = 64, .kv_heads = 64, .head_dim = 128, .value_dim = 128},
                         .query_lengths = {Index{1} << 24, Index{1} << 24},
                         .key_lengths = {Index{1} << 24, Index{1} << 24}};
  CHECK(RingPlan(much).multiply_adds(0) == detail::largest_index);
}

TEST_CASE("a bias or boolean mask stays with its queries", "[schedule]") {
  PlanRequest request = equal_shards(4, 8, full(), Rotation::queries);
  request.bound_to_queries = true;
  check_thrown(attempt(planned(request)), "UnsupportedError", "rotation of queries with a bias or boolean mask");
  request.rotation = Rotation::automatic;
  request.shape = {.query_heads = 1, .kv_heads = 1, .head_dim = 1, .value_dim = 100};
  request.pass = Pass::backward;
  CHECK(RingPlan(request).rotation() == Rotation::keys);
  request.bound_to_queries = false;
  CHECK(RingPlan(request).rotation() == Rotation::queries);
}

TEST_CASE("results go directly to their owner only where parts of shards travel", "[schedule]") {
  CHECK_FALSE(RingPlan(equal_shards(4, 8, causal())).transport().direct);
  CHECK(RingPlan(equal_shards(4, 8, sliding_window(3, 0))).transport().direct);
  PlanRequest request = equal_shards(4, 8, sliding_window(20, 0));
  request.pass = Pass::backward;
  RingPlan const plan(request);
  CHECK(plan.transport().carried_hop(0) == 0);
  for (int i = 1; i < plan.steps(); ++i) CHECK(plan.transport().carried_hop(i) == 4 - plan.offset(i));
}
