#pragma once

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "annulus/sharding/segment.hpp"

namespace annulus {

/// Blocks of `block` positions are dealt to the ranks in turn; with block 1 rank r owns r, r + ranks, r + 2 ranks, ...
/// Striped Attention: Brandon et al., arXiv 2311.09431.
struct Striped {
  Index block = 1;

  bool operator==(Striped const&) const = default;

  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result;
    Index const dealt = block_within(global), round = dealt * ranks;
    for (Rank r = 0; r < ranks; ++r)
      result.push_back(global / round * dealt + std::clamp(global % round - r * dealt, Index{0}, dealt));
    return result;
  }

  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    auto const ranks = static_cast<Index>(lengths.size());
    Index const dealt = block_within(std::accumulate(lengths.begin(), lengths.end(), Index{0}));
    Index remaining = lengths[static_cast<std::size_t>(rank)];
    std::vector<Segment> result;
    if (dealt == 1) {
      append_segment(result, remaining, rank, ranks);
      return result;
    }
    for (Index begin = rank * dealt; remaining > 0; begin += dealt * ranks) {
      append_segment(result, std::min(dealt, remaining), begin, 1);
      remaining -= std::min(dealt, remaining);
    }
    return result;
  }

 private:
  /// A block longer than the sequence deals as one of its length does, and its products do not overflow.
  Index block_within(Index global) const { return std::min(block, std::max(global, Index{1})); }
};

}  // namespace annulus
