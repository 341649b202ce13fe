#pragma once
// Mask: a predicate on global positions, evaluated only here.

#include <algorithm>
#include <optional>

#include "annulus/core/index.hpp"

namespace annulus {

/// Reach of an unbounded side: larger than any distance of two positions.
inline constexpr Index unbounded = Index{1} << 60;

/// Sliding window: query q sees key k iff q - k <= left and k - q <= right. An unset or negative side is unbounded.
struct Window {
  std::optional<Index> left{};
  std::optional<Index> right{};

  bool operator==(Window const& other) const { return reach_left() == other.reach_left() && reach_right() == other.reach_right(); }

  constexpr Index reach_left() const { return reach(left); }
  constexpr Index reach_right() const { return reach(right); }
  constexpr bool bounded() const { return reach_left() < unbounded || reach_right() < unbounded; }

 private:
  static constexpr Index reach(std::optional<Index> side) {
    return side && *side >= 0 ? std::min(*side, unbounded) : unbounded;
  }
};

/// Positions [begin, end).
struct PositionRange {
  Index begin;
  Index end;

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
      Index const begin = floor_divide(query, chunk) * chunk;
      range.begin = std::max(range.begin, begin);
      range.end = std::min(range.end, begin + chunk);
    }
    return range;
  }

  constexpr bool is_sink(Index key) const { return key < sink_tokens; }

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
  constexpr bool operator()(Index, Index, Index, Index) const { return true; }
};

}  // namespace annulus
