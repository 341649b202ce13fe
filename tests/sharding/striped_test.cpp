#include "annulus/sharding/sharding.hpp"

#include <limits>
#include <vector>

#include "conformance/sharding_suite.hpp"
#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("striped sharding passes the conformance suite", "[sharding]") {
  annulus_test::run_sharding_suite([](int, Index) { return Striped{}; });
}

TEST_CASE("block-striped sharding passes the conformance suite", "[sharding]") {
  Index const block = GENERATE(as<Index>{}, 2, 3, 5, 64, std::numeric_limits<Index>::max());
  annulus_test::run_sharding_suite([=](int, Index) { return Striped{.block = block}; });
}

TEST_CASE("a stripe is one segment whose stride is the number of ranks", "[sharding]") {
  std::vector<Index> const lengths{3, 3, 2};  // 8 positions
  CHECK(Striped{}.lengths(Side::query, 3, 8) == lengths);
  CHECK(Striped{}.segments(Side::query, 1, lengths) == std::vector<Segment>{{0, 3, 1, 3}});
  CHECK(Striped{}.segments(Side::query, 2, lengths) == std::vector<Segment>{{0, 2, 2, 3}});
}

TEST_CASE("blocks are assigned round-robin, and the last one may be short", "[sharding]") {
  Striped const striped{.block = 4};
  std::vector<Index> const lengths{8, 7};  // 0123 .... 4567 .... 89ab .... cde
  CHECK(striped.lengths(Side::key, 2, 15) == lengths);
  CHECK(striped.segments(Side::key, 0, lengths) == std::vector<Segment>{{0, 4, 0, 1}, {4, 4, 8, 1}});
  CHECK(striped.segments(Side::key, 1, lengths) == std::vector<Segment>{{0, 4, 4, 1}, {4, 3, 12, 1}});
}

TEST_CASE("on one rank the blocks are one segment", "[sharding]") {
  CHECK(Striped{.block = 4}.segments(Side::key, 0, std::vector<Index>{15}) == std::vector<Segment>{{0, 15, 0, 1}});
}

TEST_CASE("a block longer than the sequence leaves it on rank 0", "[sharding]") {
  CHECK(Striped{.block = 100}.lengths(Side::query, 3, 7) == std::vector<Index>{7, 0, 0});
}

TEST_CASE("blocks of any length are assigned to sequences of any length", "[sharding]") {
  constexpr Index longest = std::numeric_limits<Index>::max() - 1;
  for (Index block : {Index{1} << 40, Index{1} << 61, std::numeric_limits<Index>::max()}) {
    CAPTURE(block);
    Sharding const sharding = Striped{.block = block};
    auto const lengths = sharding.lengths(Side::query, 9, longest);
    Index next = 0;
    for (Index length : lengths) next += length;
    CHECK(next == longest);
    if (block < (Index{1} << 61)) continue;  // too many segments to list
    for (Rank rank = 0; rank < 9; ++rank)
      CHECK(rows_of(sharding.segments(Side::query, rank, lengths)) == lengths[static_cast<std::size_t>(rank)]);
  }
}
