#include "annulus/sharding/sharding.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

TEST_CASE("append_segment counts local rows and merges contiguous segments", "[sharding]") {
  std::vector<Segment> segments;
  detail::append_segment(segments, 0, 5, 1);
  CHECK(segments.empty());
  detail::append_segment(segments, 3, 0, 1);
  detail::append_segment(segments, 2, 3, 1);
  CHECK(segments == std::vector<Segment>{{0, 5, 0, 1}});
  detail::append_segment(segments, 2, 5, 2);
  detail::append_segment(segments, 1, 9, 2);
  CHECK(segments == std::vector<Segment>{{0, 5, 0, 1}, {5, 3, 5, 2}});
  detail::append_segment(segments, 1, 20, 2);
  CHECK(rows_of(segments) == 9);
  CHECK(positions_of(segments) == std::vector<Index>{0, 1, 2, 3, 4, 5, 7, 9, 20});
}

TEST_CASE("an empty list of segments has no rows", "[sharding]") {
  CHECK(rows_of({}) == 0);
  CHECK(positions_of({}).empty());
}

TEST_CASE("a sharding has a name", "[sharding]") {
  CHECK(Sharding().name() == "contiguous");
  CHECK(Sharding(Zigzag{}).name() == "zigzag");
  CHECK(Sharding(Striped{}).name() == "striped");
  CHECK(Sharding(Striped{.block = 16}).name() == "block-striped(16)");
  CHECK_THAT(Sharding(ExplicitMap{}).name(), StartsWith("explicit #"));
}

TEST_CASE("striped sharding requires a block of at least one", "[sharding]") {
  for (Index block : {Index{0}, Index{-3}}) {
    CHECK_THROWS_AS(Sharding(Striped{.block = block}), UnsupportedError);
    CHECK_THROWS_WITH(Sharding(Striped{.block = block}), ContainsSubstring(std::to_string(block)));
  }
}

TEST_CASE("a sharding requires at least one rank and a non-negative length", "[sharding]") {
  CHECK_THROWS_AS(Sharding().lengths(Side::query, 0, 4), ShapeError);
  CHECK_THROWS_AS(Sharding().lengths(Side::query, -1, 4), ShapeError);
  CHECK_THROWS_AS(Sharding(Zigzag{}).lengths(Side::query, 2, -4), ShapeError);
}

TEST_CASE("segments refuses ranks outside the ring and negative lengths", "[sharding]") {
  std::vector<Index> const lengths{2, 2}, negative{3, -1};
  for (Sharding const& sharding : {Sharding(), Sharding(Striped{}), Sharding(Zigzag{})}) {
    CHECK_THROWS_AS(sharding.segments(Side::query, 2, lengths), ShapeError);
    CHECK_THROWS_AS(sharding.segments(Side::query, -1, lengths), ShapeError);
    CHECK_THROWS_AS(sharding.segments(Side::query, 0, std::vector<Index>{}), ShapeError);
    CHECK_THROWS_AS(sharding.segments(Side::query, 0, negative), ShapeError);
  }
}

TEST_CASE("segments refuses lengths whose sum overflows", "[sharding]") {
  std::vector<Index> const lengths(3, Index{1} << 62);
  for (Sharding const& sharding : {Sharding(), Sharding(Striped{}), Sharding(Zigzag{})})
    CHECK_THROWS_AS(sharding.segments(Side::query, 0, lengths), ShapeError);
}

TEST_CASE("the error for wrong lengths names sharding, side, seen and expected lengths", "[sharding]") {
  std::vector<Index> const lengths{5, 1};
  CHECK_THROWS_WITH(Sharding(Zigzag{}).segments(Side::key, 0, lengths),
                    ContainsSubstring("zigzag") && ContainsSubstring("keys") && ContainsSubstring("[5, 1]") &&
                        ContainsSubstring("[3, 3]"));
}

TEST_CASE("different shardings have different fingerprints and names", "[sharding]") {
  ExplicitMap const map{.queries = {{0, 1}, {2, 3}}, .keys = {}}, moved{.queries = {{0, 2}, {1, 3}}, .keys = {}},
      cut{.queries = {{0, 1, 2}, {3}}, .keys = {}}, with_keys{.queries = {{0, 1}, {2, 3}}, .keys = {{0}, {}}};
  std::vector<Sharding> const shardings{
      Contiguous{}, Zigzag{}, Striped{}, Striped{.block = 2}, Striped{.block = 512}, ExplicitMap{}, map,
      moved,        cut,      with_keys};
  std::set<std::uint64_t> fingerprints;
  std::set<std::string> names;
  for (Sharding const& sharding : shardings) {
    fingerprints.insert(sharding.fingerprint());
    names.insert(sharding.name());
    CHECK(sharding.fingerprint() == Sharding(sharding).fingerprint());
  }
  CHECK(fingerprints.size() == shardings.size());
  CHECK(names.size() == shardings.size());
  for (std::size_t a = 0; a < shardings.size(); ++a)
    for (std::size_t b = 0; b < shardings.size(); ++b) CHECK((shardings[a] == shardings[b]) == (a == b));
}
