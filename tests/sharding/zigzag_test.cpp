#include "annulus/sharding/sharding.hpp"

#include <algorithm>
#include <vector>

#include "conformance/sharding_suite.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

/// The interleaved variant: rank r owns positions p with p mod 2 ranks equal to r or 2 ranks - 1 - r.
ExplicitMap folded_stripes(int ranks, Index global) {
  ExplicitMap map;
  map.queries.resize(static_cast<std::size_t>(ranks));
  for (Index p = 0; p < global; ++p) {
    Index const place = p % (2 * ranks);
    map.queries[static_cast<std::size_t>(std::min(place, 2 * ranks - 1 - place))].push_back(p);
  }
  return map;
}

/// Number of pairs (q, k) with k <= q for a rank's queries.
Index causal_pairs(std::vector<Segment> const& queries) {
  Index pairs = 0;
  for (Index position : positions_of(queries)) pairs += position + 1;
  return pairs;
}

}  // namespace

TEST_CASE("zigzag sharding passes the conformance suite", "[sharding]") {
  annulus_test::run_sharding_suite([](int, Index) { return Zigzag{}; });
}

TEST_CASE("the interleaved zigzag is an explicit map and passes the conformance suite", "[sharding][C27]") {
  annulus_test::run_sharding_suite([](int ranks, Index global) { return folded_stripes(ranks, global); });
}

TEST_CASE("the two zigzag variants assign different positions to a rank", "[sharding][C27]") {
  // Zigzag{}: 2 W contiguous blocks, rank r owns blocks r and 2 W - 1 - r.
  std::vector<Index> const lengths{6, 6};
  CHECK(positions_of(Zigzag{}.segments(Side::query, 0, lengths)) == std::vector<Index>{0, 1, 2, 9, 10, 11});
  CHECK(positions_of(Zigzag{}.segments(Side::query, 1, lengths)) == std::vector<Index>{3, 4, 5, 6, 7, 8});
  // Interleaved: period 2 W.
  Sharding const interleaved = folded_stripes(2, 12);
  CHECK(positions_of(interleaved.segments(Side::query, 0, lengths)) == std::vector<Index>{0, 3, 4, 7, 8, 11});
  CHECK(positions_of(interleaved.segments(Side::query, 1, lengths)) == std::vector<Index>{1, 2, 5, 6, 9, 10});
}

TEST_CASE("adjacent blocks are one segment", "[sharding]") {
  CHECK(Zigzag{}.segments(Side::query, 1, std::vector<Index>{6, 6}) == std::vector<Segment>{{0, 6, 3, 1}});
  CHECK(Zigzag{}.segments(Side::query, 0, std::vector<Index>{5}) == std::vector<Segment>{{0, 5, 0, 1}});
}

TEST_CASE("if the length is not a multiple of the blocks, the first blocks are longer", "[sharding]") {
  // Six blocks of 11 positions: 2 2 2 2 2 1.
  std::vector<Index> const lengths{3, 4, 4};
  CHECK(Zigzag{}.lengths(Side::query, 3, 11) == lengths);
  CHECK(positions_of(Zigzag{}.segments(Side::query, 0, lengths)) == std::vector<Index>{0, 1, 10});
}

TEST_CASE("zigzag gives all ranks the same causal work", "[sharding]") {
  for (int ranks : {1, 2, 5, 8}) {
    Index const global = 6 * ranks;
    auto const lengths = Zigzag{}.lengths(Side::query, ranks, global);
    for (Rank rank = 0; rank < ranks; ++rank)
      CHECK(causal_pairs(Zigzag{}.segments(Side::query, rank, lengths)) * ranks == global * (global + 1) / 2);
  }
}
