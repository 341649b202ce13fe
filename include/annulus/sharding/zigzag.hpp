#pragma once
// Zigzag sharding, which balances causal work.

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "annulus/sharding/segment.hpp"

namespace annulus {

/// The sequence is cut into 2 * ranks blocks; rank r owns blocks r and 2 * ranks - 1 - r, so that all ranks have the
/// same causal work. If the length is not a multiple of 2 * ranks, the first blocks are one position longer.
struct Zigzag {
  bool operator==(Zigzag const&) const = default;

  std::vector<Index> lengths(Side, int ranks, Index global) const {
    std::vector<Index> result;
    for (Rank r = 0; r < ranks; ++r)
      result.push_back(block_length(r, ranks, global) + block_length(2 * ranks - 1 - r, ranks, global));
    return result;
  }

  std::vector<Segment> segments(Side, Rank rank, std::span<Index const> lengths) const {
    int const ranks = static_cast<int>(lengths.size());
    Index const global = std::accumulate(lengths.begin(), lengths.end(), Index{0});
    std::vector<Segment> result;
    for (int block : {rank, 2 * ranks - 1 - rank})
      append_segment(result, block_length(block, ranks, global), block_begin(block, ranks, global), 1);
    return result;
  }

 private:
  static Index block_length(int block, int ranks, Index global) {
    return global / (2 * ranks) + (block < global % (2 * ranks) ? 1 : 0);
  }
  static Index block_begin(int block, int ranks, Index global) {
    return block * (global / (2 * ranks)) + std::min<Index>(block, global % (2 * ranks));
  }
};

}  // namespace annulus
