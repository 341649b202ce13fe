#include "annulus/sharding/sharding.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "conformance/sharding_suite.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;

namespace {

/// Positions assigned to random ranks in random order; different for queries and keys.
ExplicitMap random_map(int ranks, Index global) {
  std::mt19937_64 random(static_cast<std::uint64_t>(1000 * ranks + global));
  auto const deal = [&] {
    std::vector<Index> positions(static_cast<std::size_t>(global));
    std::iota(positions.begin(), positions.end(), Index{0});
    std::shuffle(positions.begin(), positions.end(), random);
    std::vector<std::vector<Index>> result(static_cast<std::size_t>(ranks));
    for (Index position : positions) result[random() % static_cast<std::size_t>(ranks)].push_back(position);
    return result;
  };
  auto queries = deal();
  return {std::move(queries), deal()};
}

std::vector<Segment> segments_of_rank(std::vector<Index> positions) {
  return ExplicitMap{.queries = {std::move(positions)}, .keys = {}}.segments(Side::query, 0, {});
}

std::function<void()> lengths_of(ExplicitMap const& map, int ranks, Index global, Side side = Side::query) {
  return [=] { Sharding(map).lengths(side, ranks, global); };
}

}  // namespace

TEST_CASE("random maps pass the conformance suite", "[sharding]") { annulus_test::run_sharding_suite(random_map); }

TEST_CASE("runs of constant positive stride become one segment", "[sharding]") {
  CHECK(segments_of_rank({}).empty());
  CHECK(segments_of_rank({4}) == std::vector<Segment>{{0, 1, 4, 1}});
  CHECK(segments_of_rank({4, 5, 6}) == std::vector<Segment>{{0, 3, 4, 1}});
  CHECK(segments_of_rank({1, 4, 7, 8, 9}) == std::vector<Segment>{{0, 3, 1, 3}, {3, 2, 8, 1}});
  CHECK(segments_of_rank({3, 2, 1}) == std::vector<Segment>{{0, 1, 3, 1}, {1, 1, 2, 1}, {2, 1, 1, 1}});
  CHECK(segments_of_rank({9, 0, 1, 5}) == std::vector<Segment>{{0, 1, 9, 1}, {1, 2, 0, 1}, {3, 1, 5, 1}});
}

TEST_CASE("rows keep the order of the map", "[sharding]") {
  std::vector<Index> const positions{5, 3, 9, 0, 1, 2, 8, 6, 4, 7};
  CHECK(positions_of(segments_of_rank(positions)) == positions);
}

TEST_CASE("keys are placed like the queries unless they are given", "[sharding]") {
  ExplicitMap const same{.queries = {{0, 2}, {1, 3}}, .keys = {}};
  CHECK(same.positions(Side::key) == same.queries);
  ExplicitMap const own{.queries = {{0, 2}, {1, 3}}, .keys = {{0, 1, 2, 3, 4}, {}}};
  CHECK(Sharding(own).lengths(Side::query, 2, 4) == std::vector<Index>{2, 2});
  CHECK(Sharding(own).lengths(Side::key, 2, 5) == std::vector<Index>{5, 0});
}

TEST_CASE("invalid maps are refused with the reason", "[sharding]") {
  ExplicitMap const keys_twice{.queries = {{0, 1}}, .keys = {{0, 0}}},
      two_ranks{.queries = {{0, 3}, {1, 2}}, .keys = {}};
  CHECK_NOTHROW(lengths_of(keys_twice, 1, 2)());
  CHECK_NOTHROW(Sharding(two_ranks).segments(Side::query, 1, std::vector<Index>{2, 2}));
  check_refused({
      {"by two ranks", "ShapeError", "position 1 is owned twice",
       lengths_of({.queries = {{0, 1}, {2, 1}}, .keys = {}}, 2, 4)},
      {"twice by one", "ShapeError", "position 0 is owned twice", lengths_of({.queries = {{0, 0}}, .keys = {}}, 1, 2)},
      {"beyond", "ShapeError", "position 4 is outside [0, 4)",
       lengths_of({.queries = {{0, 1}, {2, 4}}, .keys = {}}, 2, 4)},
      {"negative", "ShapeError", "position -1 is outside [0, 2)", lengths_of({.queries = {{0, -1}}, .keys = {}}, 1, 2)},
      {"missing", "ShapeError", "3 of 4 positions are owned", lengths_of({.queries = {{0, 1}, {2}}, .keys = {}}, 2, 4)},
      {"most missing", "ShapeError", "3 of 1152921504606846976 positions are owned",
       lengths_of({.queries = {{0, 1}, {2}}, .keys = {}}, 2, Index{1} << 60)},
      {"ranks", "ShapeError", "the map has 2 ranks, the ring has 3", lengths_of(two_ranks, 3, 4)},
      {"no map", "ShapeError", "the map has 0 ranks", lengths_of({}, 1, 4)},
      {"side", "ShapeError", "queries", lengths_of({.queries = {{0}, {1}}, .keys = {}}, 2, 3)},
      {"of the keys", "ShapeError", "keys: position 0 is owned twice", lengths_of(keys_twice, 1, 2, Side::key)},
      {"other lengths", "ShapeError", "4 of 5 positions are owned",
       [&] {
         Sharding(two_ranks).segments(Side::query, 1, std::vector<Index>{3, 2});
       }},
      {"segments of other ranks", "ShapeError", "ranks",
       [&] {
         Sharding(two_ranks).segments(Side::query, 1, std::vector<Index>{2, 1, 1});
       }},
  });
}
