#pragma once

#include <algorithm>
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
    Index const round = block * ranks;
    for (Rank r = 0; r < ranks; ++r)
      result.push_back(global / round * block + std::clamp(global % round - r * block, Index{0}, block));
    return result;
  }

  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    auto const ranks = static_cast<Index>(lengths.size());
    Index remaining = lengths[static_cast<std::size_t>(rank)];
    std::vector<Segment> result;
    if (block == 1) {
      append_segment(result, remaining, rank, ranks);
      return result;
    }
    for (Index begin = rank * block; remaining > 0; begin += block * ranks) {
      append_segment(result, std::min(block, remaining), begin, 1);
      remaining -= std::min(block, remaining);
    }
    return result;
  }
};

}  // namespace annulus
