#pragma once
// Explicit sharding: a list of positions for each rank.

#include <span>
#include <utility>
#include <vector>

#include "annulus/core/check.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus {

/// Any position on any rank, in any order: queries[rank][row] is a global position. Keys are placed like the queries
/// unless `keys` is given. Together the ranks must own every position in [0, length) exactly once.
struct ExplicitMap {
  std::vector<std::vector<Index>> queries;
  std::vector<std::vector<Index>> keys;

  bool operator==(ExplicitMap const&) const = default;

  std::vector<std::vector<Index>> const& positions(Side side) const {
    return side == Side::key && !keys.empty() ? keys : queries;
  }

  /// Rows of every rank. Throws as check_partition does.
  std::vector<Index> lengths(Side side, int ranks, Index global) const {
    check_partition(side, ranks, global);
    std::vector<Index> result;
    for (auto const& rank : positions(side)) result.push_back(static_cast<Index>(rank.size()));
    return result;
  }

  /// Merges runs of constant positive stride into one segment each.
  std::vector<Segment> segments(Side side, Rank rank, std::span<Index const>) const {
    auto const& list = positions(side)[static_cast<std::size_t>(rank)];
    std::vector<Segment> result;
    for (std::size_t i = 0; i < list.size();) {
      Index const step = i + 1 < list.size() ? list[i + 1] - list[i] : 1;
      Index const stride = step > 0 ? step : 1;
      std::size_t end = i + 1;
      while (end < list.size() && list[end] - list[end - 1] == stride) ++end;
      result.push_back({static_cast<Index>(i), static_cast<Index>(end - i), list[i], stride});
      i = end;
    }
    return result;
  }

  /// Throws ShapeError unless the map has `ranks` ranks that own every position in [0, global) exactly once.
  void check_partition(Side side, int ranks, Index global) const {
    char const* const what = side == Side::query ? "queries" : "keys";
    auto const& map = positions(side);
    check<ShapeError>(static_cast<int>(map.size()) == ranks, "explicit sharding of ", what, ": the map has ", map.size(),
                      " ranks, the ring has ", ranks);
    std::vector<char> owned(static_cast<std::size_t>(global), 0);
    Index total = 0;
    for (auto const& rank : map)
      for (Index position : rank) {
        check<ShapeError>(position >= 0 && position < global, "explicit sharding of ", what, ": position ", position,
                          " is outside [0, ", global, ")");
        check<ShapeError>(!std::exchange(owned[static_cast<std::size_t>(position)], 1), "explicit sharding of ", what,
                          ": position ", position, " is owned twice");
        ++total;
      }
    check<ShapeError>(total == global, "explicit sharding of ", what, ": ", total, " of ", global,
                      " positions are owned; each must be owned once");
  }
};

}  // namespace annulus
