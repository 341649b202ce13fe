#include "annulus/sharding/sharding.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;
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

TEST_CASE("invalid blocks, ranks and lengths are refused", "[sharding]") {
  std::vector<Index> const lengths{2, 2}, negative{3, -1}, huge(3, Index{1} << 62), uneven{5, 1};
  check_refused({
      {"no block", "UnsupportedError", "0", [] { Sharding(Striped{.block = 0}); }},
      {"a negative block", "UnsupportedError", "-3", [] { Sharding(Striped{.block = -3}); }},
      {"no ranks", "ShapeError", "0 ranks", [] { Sharding().lengths(Side::query, 0, 4); }},
      {"negative ranks", "ShapeError", "-1 ranks", [] { Sharding().lengths(Side::query, -1, 4); }},
      {"a negative length", "ShapeError", "-4", [] { Sharding(Zigzag{}).lengths(Side::query, 2, -4); }},
      {"lengths of no zigzag", "ShapeError", "zigzag*keys*[5, 1]*[3, 3]",
       [&] { Sharding(Zigzag{}).segments(Side::key, 0, uneven); }},
  });
  for (Sharding const& sharding : {Sharding(), Sharding(Striped{}), Sharding(Zigzag{})}) {
    auto const segments = [&](Rank rank, std::vector<Index> const& of_lengths) {
      return [=] { sharding.segments(Side::query, rank, of_lengths); };
    };
    std::string const name = sharding.name();
    check_refused({{name + ", rank beyond", "ShapeError", "rank 2", segments(2, lengths)},
                   {name + ", negative rank", "ShapeError", "rank -1", segments(-1, lengths)},
                   {name + ", no lengths", "ShapeError", "rank 0", segments(0, {})},
                   {name + ", negative length", "ShapeError", "-1", segments(0, negative)},
                   {name + ", sum of lengths", "ShapeError", "9223372036854775807 rows or more", segments(0, huge)}});
  }
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
