#pragma once
// Mask: a predicate on global positions, evaluated only here; and its forms on rows, bands of a tile and key ranges of
// packed documents.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus {

/// Reach of an unbounded side: larger than any distance of two positions.
inline constexpr Index unbounded = Index{1} << 60;

/// Sliding window: query q sees key k iff q - k <= left and k - q <= right. An unset or negative side is unbounded.
struct Window {
  std::optional<Index> left{};   ///< largest distance of an earlier key
  std::optional<Index> right{};  ///< largest distance of a later key

  /// True if both sides have the same reach.
  constexpr bool operator==(Window const& other) const {
    return reach_left() == other.reach_left() && reach_right() == other.reach_right();
  }

  constexpr Index reach_left() const { return reach(left); }    ///< `left`, or unbounded
  constexpr Index reach_right() const { return reach(right); }  ///< `right`, or unbounded
  /// True if a side is bounded.
  constexpr bool bounded() const { return reach_left() < unbounded || reach_right() < unbounded; }

 private:
  static constexpr Index reach(std::optional<Index> side) {
    return side && *side >= 0 && *side < unbounded ? *side : unbounded;  // std::min takes an address, which GPUs lack
  }
};

/// Positions [begin, end).
struct PositionRange {
  Index begin;  ///< first position
  Index end;    ///< position after the last one

  /// True if it is one of them.
  constexpr bool contains(Index position) const { return begin <= position && position < end; }
};

/// Mask rules by position. All rules that are set must hold. Default: every query sees every key.
struct Mask {
  bool causal = false;    ///< k <= q
  Window window{};        ///< see Window; keys below sink_tokens are exempt from it
  Index sink_tokens = 0;  ///< the first sink_tokens keys stay visible within the causal limit and the chunk
  Index chunk = 0;        ///< q / chunk == k / chunk; 0: no chunks

  bool operator==(Mask const&) const = default;

  /// True if the rules bound the distance of visible keys on both sides, so that a ring may pass on parts of shards.
  constexpr bool local() const {
    bool const right_bounded = causal || window.reach_right() < unbounded;
    return chunk > 0 || (window.reach_left() < unbounded && right_bounded && sink_tokens == 0);
  }

  /// Interval of the keys that `query` sees, among the sink tokens (exempt from the window) or among the other keys.
  /// Both ends are non-decreasing in `query`.
  constexpr PositionRange keys_of(Index query, bool sink) const {
    PositionRange range{-unbounded, unbounded};
    if (!sink) {
      if (window.reach_left() < unbounded) range.begin = query - window.reach_left();
      if (window.reach_right() < unbounded) range.end = query + window.reach_right() + 1;
    }
    if (causal) range.end = std::min(range.end, query + 1);
    if (chunk > 0) {
      Index const begin = detail::floor_divide(query, chunk) * chunk;
      range.begin = std::max(range.begin, begin);
      range.end = std::min(range.end, begin + chunk);
    }
    return range;
  }

  constexpr bool is_sink(Index key) const { return key < sink_tokens; }  ///< true for the first sink_tokens keys
  /// Number of sink tokens among `count` keys at first + i * stride; they come before the others.
  constexpr Index sinks_among(Index first, Index stride, Index count) const {
    return std::clamp(detail::ceil_divide(sink_tokens - first, stride), Index{0}, count);
  }

  /// True if `query` (counted from the query offset) sees `key`. Both are global positions.
  constexpr bool visible(Index query, Index key) const { return keys_of(query, is_sink(key)).contains(key); }
};

/// The default mask: everything is visible.
constexpr Mask full() { return {}; }

/// k <= q.
constexpr Mask causal() { return {.causal = true}; }

/// q - left <= k <= q + right; right = 0 gives the usual causal sliding window of left + 1 keys.
constexpr Mask sliding_window(Index left, Index right) { return {.window = {.left = left, .right = right}}; }

/// The default predicate on (batch, head, query, key): no further restriction.
struct EveryPair {
  /// True: every pair passes.
  constexpr bool operator()(Index, Index, Index, Index) const { return true; }
};

/// Rows [begin, end) of a shard or tile.
struct RowRange {
  Index begin = 0;  ///< first row
  Index end = 0;    ///< row after the last one

  bool operator==(RowRange const&) const = default;
  constexpr Index size() const { return end - begin; }   ///< number of rows
  constexpr bool empty() const { return end <= begin; }  ///< true if there are no rows
};

namespace detail {

/// The smallest range that contains both ranges; empty ranges are ignored.
constexpr RowRange hull(RowRange a, RowRange b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

/// The rows that are in both ranges; empty if there are none.
constexpr RowRange intersection(RowRange a, RowRange b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

}  // namespace detail

/// Key j of a tile is visible to query i iff i + lo <= j <= i + hi.
struct Band {
  Index lo = -unbounded;  ///< first visible key, relative to the query
  Index hi = unbounded;   ///< last visible key, relative to the query

  bool operator==(Band const&) const = default;

  /// Visible keys of `query` in a tile of `keys` keys.
  constexpr RowRange keys_of(Index query, Index keys) const {
    return {std::clamp(query + lo, Index{0}, keys), std::clamp(query + hi + 1, Index{0}, keys)};
  }

  /// The band of the same pairs if queries are counted from a row `by` later, or keys from a row `by` earlier.
  constexpr Band shifted(Index by) const { return {lo > -unbounded ? lo + by : lo, hi < unbounded ? hi + by : hi}; }

  /// True if every pair of a tile is visible.
  constexpr bool is_full(Index queries, Index keys) const { return lo + queries - 1 <= 0 && hi >= keys - 1; }
  /// True if no pair of a tile is visible.
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
    if (ramp == 0) return (queries - ramp_end) * keys;
    // Halved before the product, which would overflow for sums that do not. The ends add up to an even number if the
    // ramp is odd.
    Index const ends = (ramp_begin + shift) + (ramp_end - 1 + shift);
    Index const on_ramp = ramp % 2 == 0 ? ramp / 2 * ends : ends / 2 * ramp;
    return on_ramp + (queries - ramp_end) * keys;
  }
};

namespace detail {

/// Document rule: equal positive ids see each other. 0 and negative ids are padding, which sees and is seen by nothing.
constexpr bool same_document(std::int32_t query, std::int32_t key) { return query > 0 && query == key; }

/// Key rows of each document, for one batch item and the keys of one step.
class DocumentRuns {
 public:
  DocumentRuns() = default;

  /// id_of(row) returns the document id of a row in [0, keys).
  template <class IdOf>
  DocumentRuns(Index keys, IdOf&& id_of) {
    assign(keys, id_of);
  }

  /// Like the constructor, but reuses storage.
  template <class IdOf>
  void assign(Index keys, IdOf&& id_of) {
    runs_.clear();
    for (Index row = 0; row < keys; ++row) {
      std::int32_t const id = id_of(row);
      if (id <= 0) continue;
      if (!runs_.empty() && runs_.back().id == id && runs_.back().rows.end == row)
        runs_.back().rows.end = row + 1;
      else
        runs_.push_back({id, {row, row + 1}});
    }
    std::sort(runs_.begin(), runs_.end(),
              [](Run const& a, Run const& b) { return a.id != b.id ? a.id < b.id : a.rows.begin < b.rows.begin; });
    std::size_t kept = 0;
    for (Run const& run : runs_)
      if (kept > 0 && runs_[kept - 1].id == run.id)
        runs_[kept - 1].rows.end = run.rows.end;
      else
        runs_[kept++] = run;
    consecutive_ = kept == runs_.size();
    runs_.resize(kept);
  }

  /// True if the rows of every document are contiguous, so that a query sees exactly rows_of(its id).
  bool consecutive() const { return consecutive_; }

  /// Rows from the first to the last key of the document; empty for padding and for unknown ids.
  RowRange rows_of(std::int32_t id) const {
    if (id <= 0) return {};
    auto const found = std::lower_bound(runs_.begin(), runs_.end(), id,
                                        [](Run const& run, std::int32_t wanted) { return run.id < wanted; });
    return found != runs_.end() && found->id == id ? found->rows : RowRange{};
  }

 private:
  struct Run {
    std::int32_t id = 0;
    RowRange rows;
  };
  std::vector<Run> runs_;
  bool consecutive_ = true;
};

}  // namespace detail

}  // namespace annulus
