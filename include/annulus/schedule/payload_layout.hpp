#pragma once
// What travels: a payload is a few parts, each a dense array of rows, so that any range of rows is one run of bytes.

#include <cstddef>
#include <numeric>

#include "annulus/core/index.hpp"
#include "annulus/core/short_list.hpp"

namespace annulus {

/// Bytes of one row of each part. Parts start on cache lines.
struct PayloadLayout {
  static constexpr Index alignment = 64;
  static constexpr std::size_t max_parts = 8;
  ShortList<Index, max_parts> row_bytes;

  Index bytes_per_row() const { return std::accumulate(row_bytes.begin(), row_bytes.end(), Index{0}); }

  /// Where part p begins in a buffer for `rows` rows.
  Index part_offset(std::size_t p, Index rows) const {
    Index offset = 0;
    for (std::size_t i = 0; i < p; ++i) offset += ceil_divide(row_bytes[i] * rows, alignment) * alignment;
    return offset;
  }

  /// Size of a buffer for `rows` rows.
  Index buffer_bytes(Index rows) const { return part_offset(row_bytes.size(), rows); }
};

}  // namespace annulus
