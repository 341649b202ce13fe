#pragma once
// Visible pairs of each pair of ranks where documents are packed, for a plan that knows the documents.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "annulus/mask/attention_rules.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus::detail {

/// The parts of the segments that hold positions of `range`, as rows of a shard of their own.
inline std::vector<Segment> segments_within(std::span<Segment const> segments, PositionRange range) {
  std::vector<Segment> result;
  for (Segment const& s : segments) {
    Index const begin = std::clamp(ceil_divide(range.begin - s.global_begin, s.global_stride), Index{0}, s.length);
    Index const end = std::clamp(ceil_divide(range.end - s.global_begin, s.global_stride), begin, s.length);
    if (begin == end) continue;
    result.push_back({rows_of(result), end - begin, s.global_begin + begin * s.global_stride, s.global_stride});
  }
  return result;
}

/// Visible pairs, [rank of the queries, rank of the keys], counted for each document apart. `queries` and `keys`: the
/// segments of each rank. Documents are disjoint and ascending.
inline std::vector<Index> pairs_in_documents(Documents const& documents,
                                             std::vector<std::vector<Segment>> const& queries,
                                             std::vector<std::vector<Segment>> const& keys, AttentionRules const& rules,
                                             bool elementwise) {
  std::vector<Index> pairs(queries.size() * keys.size(), 0);
  Index const offset = rules.query_offset.value_or(0);
  TileFinder finder;
  for (PositionRange const& document : documents) {
    std::vector<std::vector<Segment>> key_parts;
    for (auto const& of_rank : keys) key_parts.push_back(segments_within(of_rank, document));
    for (std::size_t q = 0; q < queries.size(); ++q) {
      auto const query_parts = segments_within(queries[q], {document.begin - offset, document.end - offset});
      for (std::size_t k = 0; k < keys.size(); ++k)
        pairs[q * keys.size() + k] +=
            finder.find(query_parts, key_parts[k], rules.mask, offset, elementwise, nullptr, rules.block_mask)
                .visible_pairs;
    }
  }
  return pairs;
}

}  // namespace annulus::detail
