#pragma once
// Memory layout of a payload: a few parts, each a dense array of rows, so that any row range of a part is contiguous.

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "annulus/core/index.hpp"
#include "annulus/core/short_list.hpp"

namespace annulus {

/// Bytes of one row of each part. Parts start on cache lines; checksums, if any, follow the last part.
struct PayloadLayout {
  static constexpr Index alignment = 64;
  static constexpr std::size_t max_parts = 8;
  ShortList<Index, max_parts> row_bytes;
  Index checksums = 0;

  Index bytes_per_row() const { return std::accumulate(row_bytes.begin(), row_bytes.end(), Index{0}); }

  /// Byte offset of part p in a buffer for `rows` rows.
  Index part_offset(std::size_t p, Index rows) const {
    Index offset = 0;
    for (std::size_t i = 0; i < p; ++i) offset += ceil_divide(row_bytes[i] * rows, alignment) * alignment;
    return offset;
  }

  /// Bytes of a buffer for `rows` rows, with checksums.
  Index buffer_bytes(Index rows) const {
    Index const checksum_bytes = checksums * static_cast<Index>(sizeof(std::uint64_t));
    return part_offset(row_bytes.size(), rows) + (rows == 0 ? 0 : ceil_divide(checksum_bytes, alignment) * alignment);
  }
};

}  // namespace annulus
