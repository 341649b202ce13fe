#include "annulus/sharding/sharding.hpp"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "conformance/sharding_suite.hpp"
#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

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

void refused(ExplicitMap const& map, int ranks, Index global, std::string const& part) {
  CHECK_THROWS_AS(Sharding(map).lengths(Side::query, ranks, global), ShapeError);
  CHECK_THROWS_WITH(Sharding(map).lengths(Side::query, ranks, global), ContainsSubstring(part));
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
  refused({.queries = {{0, 1}, {2, 1}}, .keys = {}}, 2, 4, "position 1 is owned twice");
  refused({.queries = {{0, 0}}, .keys = {}}, 1, 2, "position 0 is owned twice");
  refused({.queries = {{0, 1}, {2, 4}}, .keys = {}}, 2, 4, "position 4 is outside [0, 4)");
  refused({.queries = {{0, -1}}, .keys = {}}, 1, 2, "position -1 is outside [0, 2)");
  refused({.queries = {{0, 1}, {2}}, .keys = {}}, 2, 4, "3 of 4 positions are owned");
  refused({.queries = {{0, 1}, {2}}, .keys = {}}, 2, Index{1} << 60, "3 of 1152921504606846976 positions are owned");
  refused({.queries = {{0, 1}, {2, 3}}, .keys = {}}, 3, 4, "the map has 2 ranks, the ring has 3");
  refused({}, 1, 4, "the map has 0 ranks");
  refused({.queries = {{0}, {1}}, .keys = {}}, 2, 3, "queries");
}

TEST_CASE("an invalid map of the keys is refused for the keys", "[sharding]") {
  Sharding const sharding = ExplicitMap{.queries = {{0, 1}}, .keys = {{0, 0}}};
  CHECK_NOTHROW(sharding.lengths(Side::query, 1, 2));
  CHECK_THROWS_WITH(sharding.lengths(Side::key, 1, 2), ContainsSubstring("keys: position 0 is owned twice"));
}

TEST_CASE("segments refuses a map of other ranks or lengths", "[sharding]") {
  Sharding const sharding = ExplicitMap{.queries = {{0, 3}, {1, 2}}, .keys = {}};
  std::vector<Index> const fitting{2, 2}, longer{3, 2}, more_ranks{2, 1, 1};
  CHECK_NOTHROW(sharding.segments(Side::query, 1, fitting));
  CHECK_THROWS_AS(sharding.segments(Side::query, 1, longer), ShapeError);
  CHECK_THROWS_AS(sharding.segments(Side::query, 1, more_ranks), ShapeError);
}
