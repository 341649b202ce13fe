#pragma once
// Tile: a rectangle of query rows x key rows with its mask coverage.

#include <algorithm>
#include <string_view>

#include "annulus/mask/mask.hpp"

namespace annulus {

/// How much of a tile is visible, and how a backend determines which pairs are.
enum class Coverage {
  none,      ///< no pair; such tiles are not emitted
  full,      ///< every pair, without a test
  band,      ///< the pairs of Tile::band
  ranges,    ///< one range of keys per query: Tile::keys_of
  elements,  ///< within the range per query of Tile::keys_of, each pair must be tested
};

constexpr std::string_view name_of(Coverage coverage) {
  switch (coverage) {
    case Coverage::none:
      return "none";
    case Coverage::full:
      return "full";
    case Coverage::band:
      return "band";
    case Coverage::ranges:
      return "ranges";
    case Coverage::elements:
      return "elements";
  }
  return "unknown";
}

/// Query i of the tile is row query_begin + i of its shard and has position query_position + i * query_stride; keys
/// alike. Stride 0: positions are irregular, so unless coverage is `full`, each pair must be tested.
struct Tile {
  Index query_begin = 0, query_count = 0;      ///< rows of the shard
  Index key_begin = 0, key_count = 0;          ///< rows of the shard
  Index query_position = 0, query_stride = 1;  ///< global positions
  Index key_position = 0, key_stride = 1;      ///< global positions
  bool sink = false;                           ///< the keys are exempt from the window
  Coverage coverage = Coverage::none;          ///< how much is visible
  Band band{};                                 ///< visible pairs, if coverage is `band`
  Index visible_pairs = 0;                     ///< exact; an upper bound for `elements`

  bool operator==(Tile const&) const = default;

  /// Keys [begin, end) of the tile, counted from key_begin, that contain all keys visible to query `query` of the tile.
  constexpr RowRange keys_of(Mask const& mask, Index query) const {
    if (coverage == Coverage::full || key_stride == 0) return {0, key_count};
    if (coverage == Coverage::band) return band.keys_of(query, key_count);
    PositionRange const range = mask.keys_of(query_position + query * query_stride, sink);
    return {std::clamp(detail::ceil_divide(range.begin - key_position, key_stride), Index{0}, key_count),
            std::clamp(detail::ceil_divide(range.end - key_position, key_stride), Index{0}, key_count)};
  }

  /// The tile clipped to the query (key) rows `rows` of the shard. Clipped-off rows must have no visible pair.
  constexpr Tile with_queries(RowRange rows) const {
    Tile tile = *this;
    tile.band = band.shifted(clip(rows, tile.query_begin, tile.query_count, tile.query_position, query_stride));
    return tile;
  }
  /// The tile clipped to the key rows `rows` of the shard; see with_queries.
  constexpr Tile with_keys(RowRange rows) const {
    Tile tile = *this;
    tile.band = band.shifted(-clip(rows, tile.key_begin, tile.key_count, tile.key_position, key_stride));
    return tile;
  }

 private:
  /// Returns the number of rows that are clipped off before the first one kept.
  static constexpr Index clip(RowRange rows, Index& begin, Index& count, Index& position, Index stride) {
    Index const skipped = std::max(rows.begin - begin, Index{0});
    count = std::min(begin + count, rows.end) - (begin + skipped);
    begin += skipped;
    position += skipped * stride;
    return skipped;
  }
};

namespace detail {

/// The band of a tile by position rules; only for tiles of equal strides and masks without chunks.
inline Band band_of(Tile const& tile, Mask const& mask) {
  PositionRange const first = mask.keys_of(tile.query_position, tile.sink);
  Band band;
  if (first.begin > -unbounded) band.lo = ceil_divide(first.begin - tile.key_position, tile.key_stride);
  if (first.end < unbounded) band.hi = ceil_divide(first.end - tile.key_position, tile.key_stride) - 1;
  return band;
}

}  // namespace detail

}  // namespace annulus
