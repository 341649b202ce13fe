#include "annulus/sharding/sharding.hpp"

#include <vector>

#include "conformance/sharding_suite.hpp"
#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("contiguous sharding passes the conformance suite", "[sharding]") {
  annulus_test::run_sharding_suite([](int, Index) { return Contiguous{}; }, false);
}

TEST_CASE("contiguous lengths differ by at most one, with the longer ones first", "[sharding]") {
  CHECK(Contiguous{}.lengths(Side::query, 4, 10) == std::vector<Index>{3, 3, 2, 2});
  CHECK(Contiguous{}.lengths(Side::key, 4, 8) == std::vector<Index>{2, 2, 2, 2});
  CHECK(Contiguous{}.lengths(Side::key, 3, 2) == std::vector<Index>{1, 1, 0});
}

TEST_CASE("contiguous blocks may have any lengths, including 0", "[sharding][C29]") {
  std::vector<Index> const lengths{0, 1, 7, 0, 3};
  Sharding const sharding;
  CHECK(sharding.segments(Side::query, 0, lengths).empty());
  CHECK(sharding.segments(Side::query, 1, lengths) == std::vector<Segment>{{0, 1, 0, 1}});
  CHECK(sharding.segments(Side::query, 2, lengths) == std::vector<Segment>{{0, 7, 1, 1}});
  CHECK(sharding.segments(Side::key, 3, lengths).empty());
  CHECK(sharding.segments(Side::key, 4, lengths) == std::vector<Segment>{{0, 3, 8, 1}});
}
