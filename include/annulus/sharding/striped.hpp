#pragma once
// Striped and block-striped sharding.

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "annulus/sharding/segment.hpp"

namespace annulus {

/// Blocks of `block` positions are assigned round-robin; with block 1 rank r owns r, r + ranks, r + 2 ranks, ...
/// Striped Attention: Brandon et al., arXiv 2311.09431.
struct Striped {
  Index block = 1;

  bool operator==(Striped const&) const = default;

  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result;
    Index const rows = clamped_block(global), round = rows * ranks;
    for (Rank r = 0; r < ranks; ++r)
      result.push_back(global / round * rows + std::clamp(global % round - r * rows, Index{0}, rows));
    return result;
  }

  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    auto const ranks = static_cast<Index>(lengths.size());
    Index const rows = clamped_block(std::accumulate(lengths.begin(), lengths.end(), Index{0}));
    Index remaining = lengths[static_cast<std::size_t>(rank)];
    std::vector<Segment> result;
    if (rows == 1) {
      append_segment(result, remaining, rank, ranks);
      return result;
    }
    for (Index begin = rank * rows; remaining > 0; begin += rows * ranks) {
      append_segment(result, std::min(rows, remaining), begin, 1);
      remaining -= std::min(rows, remaining);
    }
    return result;
  }

 private:
  /// Block length clamped to the sequence: the assignment is the same, and products of it cannot overflow.
  Index clamped_block(Index global) const { return std::min(block, std::max(global, Index{1})); }
};

}  // namespace annulus
