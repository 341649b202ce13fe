#pragma once
// Segments: every sharding is a list of them, and the rest of the library does not depend on the kind of sharding.

#include <algorithm>
#include <span>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus {

/// Local rows [local_begin, local_begin + length) hold the global positions global_begin + i * global_stride.
struct Segment {
  Index local_begin = 0;    ///< first row of the shard
  Index length = 0;         ///< number of rows
  Index global_begin = 0;   ///< position of the first row
  Index global_stride = 1;  ///< distance of consecutive rows' positions

  bool operator==(Segment const&) const = default;
};

/// Side of the attention problem. Queries and keys may have different lengths, so each side is sharded separately.
enum class Side {
  query,  ///< rows of q and of the output
  key,    ///< rows of k and v
};

namespace detail {

/// Appends a segment, or extends the last one where it continues at the same stride. An empty segment is dropped.
inline void append_segment(std::vector<Segment>& segments, Index length, Index global_begin, Index global_stride) {
  if (length == 0) return;
  Index local_begin = 0;
  if (!segments.empty()) {
    Segment& last = segments.back();
    local_begin = last.local_begin + last.length;
    if (last.global_stride == global_stride && last.global_begin + last.length * global_stride == global_begin) {
      last.length += length;
      return;
    }
  }
  segments.push_back({local_begin, length, global_begin, global_stride});
}

/// Merges runs of constant positive stride into one segment each.
inline std::vector<Segment> segments_of(std::span<Index const> positions) {
  std::vector<Segment> segments;
  for (std::size_t begin = 0, end = 0; begin < positions.size(); begin = end) {
    Index const step = begin + 1 < positions.size() ? positions[begin + 1] - positions[begin] : 1;
    Index const stride = step > 0 ? step : 1;
    end = begin + 1;
    while (end < positions.size() && positions[end] - positions[end - 1] == stride) ++end;
    segments.push_back({static_cast<Index>(begin), static_cast<Index>(end - begin), positions[begin], stride});
  }
  return segments;
}

/// The parts of the segments that are local rows begin .. end - 1, which keep their local_begin.
inline std::vector<Segment> segments_between(std::span<Segment const> segments, Index begin, Index end) {
  std::vector<Segment> parts;
  for (Segment const& s : segments) {
    Index const first = std::max(begin, s.local_begin), last = std::min(end, s.local_begin + s.length);
    if (first < last)
      parts.push_back(
          {first, last - first, s.global_begin + (first - s.local_begin) * s.global_stride, s.global_stride});
  }
  return parts;
}

}  // namespace detail

/// Number of local rows that the segments, which continue each other, cover.
inline Index rows_of(std::span<Segment const> segments) {
  return segments.empty() ? 0 : segments.back().local_begin + segments.back().length - segments.front().local_begin;
}

/// Global position of every local row.
inline std::vector<Index> positions_of(std::span<Segment const> segments) {
  std::vector<Index> positions;
  positions.reserve(static_cast<std::size_t>(rows_of(segments)));
  for (Segment const& segment : segments)
    for (Index i = 0; i < segment.length; ++i) positions.push_back(segment.global_begin + i * segment.global_stride);
  return positions;
}

}  // namespace annulus
