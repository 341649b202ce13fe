#pragma once
// Test suite that every sharding must pass: one call runs all cases over numbers of ranks and edge-case lengths.

#include <algorithm>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "annulus/sharding/sharding.hpp"
#include "support/catch.hpp"

namespace annulus_test {

/// Lengths around the block boundaries of `ranks` ranks, and 0, 1 and primes.
inline std::vector<annulus::Index> awkward_lengths(int ranks) {
  annulus::Index const w = ranks;
  std::set<annulus::Index> const lengths{0,         1,     2,         3,         w - 1, w,  w + 1,
                                         2 * w - 1, 2 * w, 2 * w + 1, 4 * w + 3, 8 * w, 37, 97};
  return {lengths.begin(), lengths.end()};
}

/// Checks that the segments of one rank fill its rows from the first to the last without a gap.
inline void check_segments(std::vector<annulus::Segment> const& segments, annulus::Index rows) {
  annulus::Index next = 0;
  for (annulus::Segment const& segment : segments) {
    CHECK(segment.local_begin == next);
    CHECK(segment.length >= 1);
    CHECK(segment.global_stride >= 1);
    next += segment.length;
  }
  CHECK(next == rows);
  CHECK(annulus::rows_of(segments) == rows);
}

/// Checks that lengths sum to `global`, and that together the ranks own every position once.
inline void check_partition(annulus::Sharding const& sharding, annulus::Side side, int ranks, annulus::Index global) {
  std::vector<annulus::Index> const lengths = sharding.lengths(side, ranks, global);
  REQUIRE(lengths.size() == static_cast<std::size_t>(ranks));
  std::vector<annulus::Index> owned;
  for (annulus::Rank rank = 0; rank < ranks; ++rank) {
    auto const segments = sharding.segments(side, rank, lengths);
    check_segments(segments, lengths[static_cast<std::size_t>(rank)]);
    auto const positions = annulus::positions_of(segments);
    CHECK(positions.size() == static_cast<std::size_t>(lengths[static_cast<std::size_t>(rank)]));
    owned.insert(owned.end(), positions.begin(), positions.end());
    CHECK(sharding.segments(side, rank, lengths) == segments);
  }
  std::sort(owned.begin(), owned.end());
  std::vector<annulus::Index> every(static_cast<std::size_t>(global));
  for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<annulus::Index>(i);
  CHECK(owned == every);
}

/// Checks that a sharding that fixes the lengths throws ShapeError for others.
inline void check_refuses_other_lengths(annulus::Sharding const& sharding, int ranks, annulus::Index global) {
  std::vector<annulus::Index> lengths = sharding.lengths(annulus::Side::query, ranks, global);
  auto const from = std::find_if(lengths.begin(), lengths.end(), [](annulus::Index length) { return length > 0; });
  if (ranks < 2 || from == lengths.end()) return;
  *from -= 1;
  *(from + 1 == lengths.end() ? lengths.begin() : from + 1) += 1;
  for (annulus::Rank rank = 0; rank < ranks; ++rank)
    CHECK_THROWS_AS(sharding.segments(annulus::Side::query, rank, lengths), annulus::ShapeError);
}

/// make(ranks, global): the sharding under test. fixes_lengths: any other lengths are an error; false for a kind with
/// any_lengths.
inline void run_sharding_suite(std::function<annulus::Sharding(int, annulus::Index)> const& make,
                               bool fixes_lengths = true) {
  for (int ranks = 1; ranks <= 16; ++ranks)
    for (annulus::Index global : awkward_lengths(ranks)) {
      CAPTURE(ranks, global);
      annulus::Sharding const sharding = make(ranks, global);
      check_partition(sharding, annulus::Side::query, ranks, global);
      check_partition(sharding, annulus::Side::key, ranks, global);
      CHECK(sharding == make(ranks, global));
      CHECK(sharding.fingerprint() == make(ranks, global).fingerprint());
      if (fixes_lengths) check_refuses_other_lengths(sharding, ranks, global);
    }
}

}  // namespace annulus_test
