#pragma once
// Band: the form of causal and sliding-window masks between two segments of equal stride.

#include <algorithm>

#include "annulus/core/index.hpp"
#include "annulus/mask/mask.hpp"

namespace annulus {

/// Rows [begin, end) of a shard or tile.
struct RowRange {
  Index begin = 0;
  Index end = 0;

  bool operator==(RowRange const&) const = default;
  constexpr Index size() const { return end - begin; }
  constexpr bool empty() const { return end <= begin; }
};

/// The smallest range that contains both ranges; empty ranges are ignored.
constexpr RowRange hull(RowRange a, RowRange b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

/// Key j of a tile is visible to query i iff i + lo <= j <= i + hi.
struct Band {
  Index lo = -unbounded;
  Index hi = unbounded;

  bool operator==(Band const&) const = default;

  /// Visible keys of `query` in a tile of `keys` keys.
  constexpr RowRange keys_of(Index query, Index keys) const {
    return {std::clamp(query + lo, Index{0}, keys), std::clamp(query + hi + 1, Index{0}, keys)};
  }

  /// The band of the same pairs if queries are counted from a row `by` later, or keys from a row `by` earlier.
  constexpr Band shifted(Index by) const {
    return {lo > -unbounded ? lo + by : lo, hi < unbounded ? hi + by : hi};
  }

  constexpr bool is_full(Index queries, Index keys) const { return lo + queries - 1 <= 0 && hi >= keys - 1; }
  constexpr bool is_empty(Index queries, Index keys) const { return queries_seeing(queries, keys).empty(); }

  /// Range of the query rows that see a key; they are contiguous.
  constexpr RowRange queries_seeing(Index queries, Index keys) const {
    if (hi < lo || keys == 0) return {};
    RowRange const rows{std::max(Index{0}, -hi), std::min(queries, keys - lo)};
    return rows.empty() ? RowRange{} : rows;
  }

  /// Smallest contiguous range of key rows containing every visible key.
  constexpr RowRange keys_seen(Index queries, Index keys) const {
    RowRange const rows = queries_seeing(queries, keys);
    if (rows.empty()) return {};
    return {keys_of(rows.begin, keys).begin, keys_of(rows.end - 1, keys).end};
  }

  /// Number of visible pairs of a tile, in closed form.
  constexpr Index count(Index queries, Index keys) const {
    return hi < lo ? 0 : clamped_sum(hi + 1, queries, keys) - clamped_sum(lo, queries, keys);
  }

 private:
  /// Sum over i in [0, queries) of clamp(i + shift, 0, keys).
  static constexpr Index clamped_sum(Index shift, Index queries, Index keys) {
    Index const ramp_begin = std::clamp(-shift, Index{0}, queries);
    Index const ramp_end = std::clamp(keys - shift, ramp_begin, queries);
    Index const ramp = ramp_end - ramp_begin;
    Index const on_ramp = ramp == 0 ? 0 : ramp * shift + (ramp_begin + ramp_end - 1) * ramp / 2;
    return on_ramp + (queries - ramp_end) * keys;
  }
};

}  // namespace annulus
