#pragma once
// Sharded rows: the segments of all ranks, and their numbers of rows, for one side of a call on a cache.

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include "annulus/attention/agreement.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus::detail {

/// The segments of all ranks, and their numbers of rows, for one side of a sharding; found again if the rows change.
class ShardedRows {
 public:
  /// `records`: of the ranks' calls. Throws ShapeError for lengths that the sharding does not accept.
  void find(Sharding const& sharding, Side side, std::span<CallRecord const> records) {
    auto const rows = [&](CallRecord const& r) { return side == Side::query ? r.local_queries : r.local_keys; };
    bool const known = lengths_.size() == records.size() && segments_.size() == records.size() &&
                       std::equal(records.begin(), records.end(), lengths_.begin(),
                                  [&](CallRecord const& r, Index length) { return rows(r) == length; });
    if (known) return;
    lengths_.clear();
    segments_.clear();
    for (CallRecord const& record : records) lengths_.push_back(rows(record));
    for (std::size_t r = 0; r < records.size(); ++r)
      segments_.push_back(sharding.segments(side, static_cast<Rank>(r), lengths_));
  }

  std::span<Index const> lengths() const { return lengths_; }
  Index total() const { return std::accumulate(lengths_.begin(), lengths_.end(), Index{0}); }
  std::span<Segment const> segments(Rank rank) const { return segments_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<Index> lengths_;
  std::vector<std::vector<Segment>> segments_;
};

}  // namespace annulus::detail
