#pragma once
// Contiguous sharding.

#include <numeric>
#include <span>
#include <vector>

#include "annulus/sharding/segment.hpp"

namespace annulus {

/// Each rank owns one block of the sequence; blocks are in rank order and may have any lengths, including 0.
struct Contiguous {
  bool operator==(Contiguous const&) const = default;

  /// Near-equal blocks: the first global % ranks ranks own one position more.
  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result(static_cast<std::size_t>(ranks), global / ranks);
    for (std::size_t r = 0; r < static_cast<std::size_t>(global % ranks); ++r) ++result[r];
    return result;
  }

  /// `lengths`: rows of every rank.
  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    Index const begin = std::accumulate(lengths.begin(), lengths.begin() + rank, Index{0});
    std::vector<Segment> result;
    append_segment(result, lengths[static_cast<std::size_t>(rank)], begin, 1);
    return result;
  }
};

}  // namespace annulus
