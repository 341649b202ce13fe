#pragma once
// Visible tiles: sharding x mask gives the tiles of one rank's queries and one owner's keys that contain visible pairs,
// and the number of these pairs where documents are packed.

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "annulus/mask/attention_rules.hpp"
#include "annulus/mask/block_mask.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/mask/tile.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus::detail {

/// Number of visible pairs of two shards (an upper bound where pairs are tested), and row ranges that contain them.
struct Need {
  Index visible_pairs = 0;
  RowRange queries{};
  RowRange keys{};
};

/// Above this many segment pairs, separate tiles do not pay; one tile masked element by element is emitted instead.
inline constexpr std::size_t tile_limit = std::size_t{1} << 16;

/// Splits key segments where the sink tokens end: on each side of the split a query sees one interval of keys.
inline void split_at_sinks(std::span<Segment const> keys, Mask const& mask, std::vector<Segment>& result) {
  result.clear();
  for (Segment const& segment : keys) {
    Index const exempt = mask.sinks_among(segment.global_begin, segment.global_stride, segment.length);
    if (exempt > 0) result.push_back({segment.local_begin, exempt, segment.global_begin, segment.global_stride});
    if (exempt < segment.length)
      result.push_back({segment.local_begin + exempt, segment.length - exempt,
                        segment.global_begin + exempt * segment.global_stride, segment.global_stride});
  }
}

/// Splits segments where blocks of `block` positions end; positions count from `offset`.
inline void split_at_blocks(std::span<Segment const> segments, Index block, Index offset,
                            std::vector<Segment>& result) {
  result.clear();
  for (Segment rest : segments)
    while (rest.length > 0) {
      Index const position = rest.global_begin + offset;
      Index const end = (floor_divide(position, block) + 1) * block;
      Index const count = std::min(rest.length, ceil_divide(end - position, rest.global_stride));
      result.push_back({rest.local_begin, count, rest.global_begin, rest.global_stride});
      rest.local_begin += count;
      rest.global_begin += count * rest.global_stride;
      rest.length -= count;
    }
}

/// Sets coverage, band and visible pairs of a tile from its positions; returns its need in rows of the tile.
inline Need classify(Tile& tile, Mask const& mask) {
  Index const last_query = tile.query_position + (tile.query_count - 1) * tile.query_stride;
  Index const last_key = tile.key_position + (tile.key_count - 1) * tile.key_stride;
  PositionRange const first = mask.keys_of(tile.query_position, tile.sink), last = mask.keys_of(last_query, tile.sink);
  RowRange const all_queries{0, tile.query_count}, all_keys{0, tile.key_count};
  // Both ends of the interval are non-decreasing in the query, so the first and the last query bound all others.
  if (first.begin > last_key || last.end <= tile.key_position) return {};
  if (last.begin <= tile.key_position && first.end > last_key) {
    tile.coverage = Coverage::full;
    tile.visible_pairs = tile.query_count * tile.key_count;
    return {tile.visible_pairs, all_queries, all_keys};
  }
  if (mask.chunk == 0 && tile.query_stride == tile.key_stride) {
    tile.band = band_of(tile, mask);
    if (tile.band.is_empty(tile.query_count, tile.key_count)) return {};
    tile.coverage = Coverage::band;
    tile.visible_pairs = tile.band.count(tile.query_count, tile.key_count);
    return {tile.visible_pairs, tile.band.queries_seeing(tile.query_count, tile.key_count),
            tile.band.keys_seen(tile.query_count, tile.key_count)};
  }
  tile.coverage = Coverage::ranges;
  Need need;
  for (Index i = 0; i < tile.query_count; ++i) {
    RowRange const keys = tile.keys_of(mask, i);
    if (keys.empty()) continue;
    need.visible_pairs += keys.size();
    need.queries = hull(need.queries, {i, i + 1});
    need.keys = hull(need.keys, keys);
  }
  tile.visible_pairs = need.visible_pairs;
  if (need.visible_pairs == 0) tile.coverage = Coverage::none;
  return need;
}

/// What becomes of full tiles that are neighbours. Whether a tile is full depends on all of its queries: where the order
/// of sums must be that of a single query, tiles stay apart.
enum class FullTiles { joined, apart };

/// Appends a tile; a full tile may be joined to a full left neighbour in the same row of tiles.
inline void append_tile(std::vector<Tile>& tiles, Tile const& tile, FullTiles neighbours) {
  auto const joins = [](Tile const& a, Tile const& b) {
    return a.coverage == Coverage::full && b.coverage == Coverage::full && a.query_begin == b.query_begin &&
           a.query_count == b.query_count && a.key_begin + a.key_count == b.key_begin;
  };
  if (neighbours == FullTiles::joined && !tiles.empty() && joins(tiles.back(), tile)) {
    tiles.back().key_count += tile.key_count;
    tiles.back().visible_pairs += tile.visible_pairs;
    tiles.back().key_stride = 0;
    return;
  }
  tiles.push_back(tile);
}

/// Finds the tiles of pairs of shards. Storage is reused, so that a repeated search allocates nothing.
class TileFinder {
 public:
  /// See visible_tiles. Replaces the contents of `tiles`.
  Need find(std::span<Segment const> queries, std::span<Segment const> keys, Mask const& mask, Index query_offset,
            bool elementwise, std::vector<Tile>* tiles, BlockMask const& blocks = {},
            FullTiles neighbours = FullTiles::joined) {
    if (tiles) tiles->clear();
    bool const unmasked = mask == full() && !elementwise && !blocks;
    bool splits = !unmasked && queries.size() * keys.size() <= detail::tile_limit;
    std::span<Segment const> split;
    if (splits) {
      detail::split_at_sinks(keys, mask, split_);
      split = split_;
      if (blocks) {
        split_at_blocks(queries, blocks.query_block(), query_offset, query_blocks_);
        split_at_blocks(split_, blocks.key_block(), 0, key_blocks_);
        queries = query_blocks_;
        split = key_blocks_;
        splits = queries.size() * split.size() <= detail::tile_limit;
      }
    }
    if (!splits) {
      Index const query_rows = rows_of(queries), key_rows = rows_of(keys);
      if (query_rows * key_rows == 0) return {};
      Index const query_begin = queries.front().local_begin, key_begin = keys.front().local_begin;
      if (tiles)
        tiles->push_back({.query_begin = query_begin,
                          .query_count = query_rows,
                          .key_begin = key_begin,
                          .key_count = key_rows,
                          .query_stride = 0,
                          .key_stride = 0,
                          .coverage = unmasked ? Coverage::full : Coverage::elements,
                          .visible_pairs = query_rows * key_rows});
      return {query_rows * key_rows, {query_begin, query_begin + query_rows}, {key_begin, key_begin + key_rows}};
    }
    Need need;
    for (Segment const& query : queries)
      for (Segment const& key : split) {
        if (!blocks.visible(query.global_begin + query_offset, key.global_begin)) continue;
        Tile tile{.query_begin = query.local_begin,
                  .query_count = query.length,
                  .key_begin = key.local_begin,
                  .key_count = key.length,
                  .query_position = query.global_begin + query_offset,
                  .query_stride = query.global_stride,
                  .key_position = key.global_begin,
                  .key_stride = key.global_stride,
                  .sink = mask.is_sink(key.global_begin)};
        Need const part = detail::classify(tile, mask);
        if (part.visible_pairs == 0) continue;
        need.visible_pairs += part.visible_pairs;
        need.queries = hull(need.queries, {tile.query_begin + part.queries.begin, tile.query_begin + part.queries.end});
        need.keys = hull(need.keys, {tile.key_begin + part.keys.begin, tile.key_begin + part.keys.end});
        if (!tiles) continue;
        if (elementwise) tile.coverage = Coverage::elements;
        detail::append_tile(*tiles, tile, neighbours);
      }
    if (tiles && neighbours == FullTiles::joined) join_rows(*tiles);
    return need;
  }

 private:
  /// Merges full tiles of adjacent rows of tiles that cover the same keys.
  void join_rows(std::vector<Tile>& tiles) {
    // Indices of the full tiles of the row above and of this row, in key order, for a joint traversal.
    above_.clear();
    row_.clear();
    // The two are swapped from row to row, so either may have to hold the longest one in the next call.
    above_.reserve(tiles.size());
    row_.reserve(tiles.size());
    Index row_begin = 0;
    std::size_t kept = 0, candidate = 0;
    for (std::size_t i = 0; i < tiles.size(); ++i) {
      Tile const tile = tiles[i];
      if (tile.coverage != Coverage::full) {
        tiles[kept++] = tile;
        continue;
      }
      if (std::exchange(row_begin, tile.query_begin) != tile.query_begin) {
        std::swap(above_, row_);
        row_.clear();
        candidate = 0;
      }
      while (candidate < above_.size() && tiles[above_[candidate]].key_begin < tile.key_begin) ++candidate;
      Tile* const above = candidate < above_.size() ? &tiles[above_[candidate]] : nullptr;
      if (above && above->key_begin == tile.key_begin && above->key_count == tile.key_count &&
          above->query_begin + above->query_count == tile.query_begin) {
        above->query_count += tile.query_count;
        above->visible_pairs += tile.visible_pairs;
        above->query_stride = 0;
        row_.push_back(above_[candidate]);
      } else {
        row_.push_back(kept);
        tiles[kept++] = tile;
      }
    }
    tiles.resize(kept);
  }

  std::vector<Segment> split_, query_blocks_, key_blocks_;
  std::vector<std::size_t> above_, row_;
};

/// Finds the tiles of (queries x keys) with visible pairs, in row order, and returns the rows needed. Query positions
/// are counted from `query_offset`. With `elementwise` (a boolean mask or a predicate is given) no tile is full: each
/// pair that the positions allow is tested. `tiles` may be null if only the need is of interest.
inline Need visible_tiles(std::span<Segment const> queries, std::span<Segment const> keys, Mask const& mask,
                          Index query_offset, bool elementwise, std::vector<Tile>* tiles) {
  return TileFinder().find(queries, keys, mask, query_offset, elementwise, tiles);
}

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
