#pragma once
// Shardings and masks chosen by the bytes of an input.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "annulus/mask/mask.hpp"
#include "annulus/sharding/sharding.hpp"
#include "fuzz/byte_reader.hpp"

namespace annulus_fuzz {

using annulus::Index;

/// A map in which every position has one owner: a byte chooses the rank, and whether the position comes first or last.
inline std::vector<std::vector<Index>> valid_map(ByteReader& in, int ranks, Index positions) {
  std::vector<std::vector<Index>> map(static_cast<std::size_t>(ranks));
  for (Index position = 0; position < positions; ++position) {
    std::int64_t const choice = in.between(0, 2 * ranks - 1);
    std::vector<Index>& rows = map[static_cast<std::size_t>(choice % ranks)];
    rows.insert(choice < ranks ? rows.end() : rows.begin(), position);
  }
  return map;
}

/// A sharding of any kind, valid for these numbers of queries and keys.
inline annulus::Sharding valid_sharding(ByteReader& in, int ranks, Index queries, Index keys) {
  switch (in.between(0, 4)) {
    case 1:
      return annulus::Striped{};
    case 2:
      return annulus::Zigzag{};
    case 3:
      return annulus::Striped{in.between(2, 7)};
    case 4: {
      auto const map = valid_map(in, ranks, queries);
      if (queries == keys && !in.one_in(2)) return annulus::ExplicitMap{map, {}};
      return annulus::ExplicitMap{map, valid_map(in, ranks, keys)};
    }
    default:
      return annulus::Contiguous{};
  }
}

/// Lengths of contiguous shards, some of them 0: each rank but the last takes a part of what is left.
inline std::vector<Index> uneven_lengths(ByteReader& in, int ranks, Index positions) {
  std::vector<Index> lengths;
  for (int rank = 1; rank < ranks; ++rank) {
    lengths.push_back(in.between(0, positions));
    positions -= lengths.back();
  }
  lengths.push_back(positions);
  return lengths;
}

/// A mask over positions up to `longest`.
inline annulus::Mask valid_mask(ByteReader& in, Index longest) {
  annulus::Mask mask{.causal = in.one_in(2)};
  if (in.one_in(2)) mask.window.left = in.between(-1, longest);
  if (in.one_in(2)) mask.window.right = in.between(-1, longest);
  if (in.one_in(2)) mask.sink_tokens = in.between(0, longest + 1);
  if (in.one_in(3)) mask.chunk = in.between(1, longest + 1);
  return mask;
}

}  // namespace annulus_fuzz
