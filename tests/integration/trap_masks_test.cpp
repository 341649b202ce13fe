// Traps of masks over sharded sequences. Every case is judged by dense attention, forward and backward.

#include <annulus/schedule/ring_plan.hpp>

#include "integration/solve.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::Rotation;

namespace {

/// Checks one mask with every sharding and both rotations.
template <class SetMask>
void check_every_sharding(Extents const& extents, int ranks, SetMask&& set_mask) {
  std::int64_t const keys = extents.key_length == 0 ? extents.query_length : extents.key_length;
  for (annulus::Sharding const& sharding : every_sharding(ranks, extents.query_length, keys))
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem(extents, ranks, sharding, rotation);
      set_mask(problem);
      CHECK(complaints(problem) == "");
    }
}

annulus::RingPlan forward_plan(RingProblem problem) {
  settle(problem);
  return annulus::RingPlan({.query_lengths = problem.query_lengths,
                            .key_lengths = problem.key_lengths,
                            .sharding = problem.options.sharding,
                            .rules = annulus::rules_of(problem.options)});
}

}  // namespace

TEST_CASE("the causal mask compares global positions at every step", "[trap][C1]") {
  for (int ranks : {2, 3, 4, 5, 7, 8})
    check_every_sharding({.query_length = 41}, ranks, [](RingProblem& problem) { problem.dense.causal = true; });
}

TEST_CASE("a window may cross 0, 1 or 3 shard boundaries", "[trap][C18]") {
  // Four ranks hold 10 positions each: reaches of 4, 13 and 33 end in the same, the next and the fourth shard.
  for (std::int64_t left : {-1, 0, 4, 13, 33})
    for (std::int64_t right : {-1, 0, 4, 13, 33})
      check_every_sharding({.query_heads = 1, .query_length = 40, .head_dim = 3}, 4, [&](RingProblem& problem) {
        problem.dense.window_left = left;
        problem.dense.window_right = right;
      });
}

TEST_CASE("a step without visible keys in the window is skipped, and gives no NaN", "[trap][C19]") {
  for (std::int64_t offset : {0, 18, -18})
    for (std::int64_t reach : {0, 1, 5})
      check_every_sharding({.query_length = 36}, 4, [&](RingProblem& problem) {
        problem.dense.window_left = reach;
        problem.dense.window_right = 1;
        problem.dense.query_offset = offset;
      });

  // Queries are 3 shards past the keys of their rank and see only keys of the owners 2, 3 and 4 ranks on.
  RingProblem problem = small_ring_problem({.query_length = 36}, 6);
  problem.dense.window_left = problem.dense.window_right = 1;
  problem.dense.query_offset = 18;
  annulus::RingPlan const plan = forward_plan(problem);
  CHECK(plan.step(0, 0).visible_pairs == 0);
  CHECK(plan.tiles(0, 0).empty());
  CHECK(plan.steps() == 4);
}

TEST_CASE("document ids of 0 and below are padding, in every sharding", "[trap][C22]") {
  std::vector<int> const from_zero{0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3, 0, 0, 4, 4, 4, 5, 0, 0, 0, 0, 0, 0};
  std::vector<int> from_below = from_zero;
  for (std::size_t i = 0; i < from_below.size(); ++i)
    if (from_below[i] == 0) from_below[i] = i % 2 == 0 ? -1 : 0;
  for (auto const& ids : {from_zero, from_below})
    check_every_sharding({.query_length = 23}, 3, [&](RingProblem& problem) { give_documents(problem, ids); });

  // Padding does not see itself, whether its id is 0 or -1.
  RingProblem problem = small_ring_problem({.query_length = 23}, 3);
  give_documents(problem, from_below);
  RingResult const result = solve<float>(problem);
  for (std::size_t row = 0; row < from_below.size(); ++row) {
    INFO("row " << row << " of document " << from_below[row]);
    CHECK((result.lse[row] == -std::numeric_limits<double>::infinity()) == (from_below[row] <= 0));
  }
}

TEST_CASE("packed documents of any length work with any sharding", "[trap][C26]") {
  // No length is a multiple of 2 * ranks, so no document is zigzag by itself; one document is interrupted.
  for (int ranks : {2, 3, 4}) {
    std::vector<int> ids = documents_of_lengths(2, {7, 1, 13, 5, 2, 9});
    for (std::size_t row : {3u, 4u, 30u}) ids[row] = 5;
    for (bool causal : {false, true})
      check_every_sharding({.batch = 2, .query_length = 37, .head_dim = 3}, ranks, [&](RingProblem& problem) {
        give_documents(problem, ids);
        problem.dense.causal = causal;
      });
  }
}

TEST_CASE("a causal mask with unequal lengths is aligned by the query offset alone", "[trap][C31]") {
  for (auto const& [queries, keys] : {std::pair{19, 31}, std::pair{31, 19}}) {
    // Top left: both begin at position 0. Bottom right: the last query has the position of the last key.
    for (std::int64_t offset : {0, keys - queries})
      check_every_sharding({.query_length = queries, .key_length = keys}, 3, [&](RingProblem& problem) {
        problem.dense.causal = true;
        problem.dense.query_offset = offset;
      });
  }

  // With equal logits, lse is the logarithm of the number of visible keys, here of 2 queries and 5 keys.
  RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = 2, .key_length = 5}, 2);
  problem.dense.causal = true;
  problem.dense.softmax_scale = 0;
  CHECK(solve<double>(problem).lse == std::vector{std::log(1.0), std::log(2.0)});
  problem.dense.query_offset = 3;
  CHECK(solve<double>(problem).lse == std::vector{std::log(4.0), std::log(5.0)});
}

TEST_CASE("every mask works with every sharding", "[trap][C42]") {
  using SetMask = void (*)(RingProblem&);
  SetMask const masks[] = {
      [](RingProblem&) {},
      [](RingProblem& p) { p.dense.causal = true; },
      [](RingProblem& p) { p.dense.window_left = 9, p.dense.window_right = 2; },
      [](RingProblem& p) { p.dense.causal = true, p.dense.window_left = 6, p.dense.sink_tokens = 3; },
      [](RingProblem& p) { p.dense.chunk = 7; },
      [](RingProblem& p) { p.dense.causal = true, p.dense.chunk = 11, p.dense.query_offset = 5; },
      [](RingProblem& p) {
        give_documents(p, documents_of_lengths(1, {8, 3, 15, 5, 2}));
      },
      [](RingProblem& p) {
        p.dense.predicate = [](auto, auto head, auto query, auto key) { return (query + key + head) % 3 != 0; };
      },
  };
  for (int ranks : {3, 4})
    for (SetMask set_mask : masks) check_every_sharding({.query_length = 33}, ranks, set_mask);

  // The rows of a boolean mask span all keys, so only keys can rotate.
  for (annulus::Sharding const& sharding : every_sharding(4, 33, 33)) {
    RingProblem problem = small_ring_problem({.batch = 2, .query_length = 33}, 4, sharding);
    give_mask(problem, 2, 1);
    problem.dense.causal = true;
    CHECK(complaints(problem) == "");
  }
}
