#pragma once
// Memory layout of a payload: a few named parts, each a dense array of rows, so that any row range of a part is
// contiguous.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/short_list.hpp"

namespace annulus {

/// What a part of a payload holds. The plan, the buffers and the passes find parts by these names.
enum class Part : std::uint8_t {
  q,              ///< queries
  k,              ///< keys
  v,              ///< values
  dout,           ///< gradient of the output
  lse,            ///< log-sum-exp of the forward pass
  lse_remainder,  ///< rounding error of lse
  delta,          ///< rowsum(dout * output)
  document_ids,   ///< of queries or keys
  accumulator,    ///< running state: weighted sum of the values
  maximum,        ///< running state: largest logit
  sum,            ///< running state: sum of the weights
  dq,             ///< gradient of q
  dk,             ///< gradient of k
  dv,             ///< gradient of v
  dbias,          ///< gradient of the bias
  dsinks,         ///< gradient of the sink logits
  bias,           ///< added to the logits of a query
  boolean_mask,   ///< keys that a query may see
  output,         ///< normalised weighted sum of the values
};

constexpr std::string_view name_of(Part part) {
  constexpr std::string_view names[] = {
      "q",   "k",  "v",  "dout", "lse",   "lse_remainder", "delta", "document ids", "accumulator", "maximum",
      "sum", "dq", "dk", "dv",   "dbias", "dsinks",        "bias",  "boolean mask", "output"};
  return names[static_cast<std::size_t>(part)];
}

namespace detail {

/// True for the parts that are rounded to the wire type.
constexpr bool has_wire_type(Part part) {
  return part == Part::q || part == Part::k || part == Part::v || part == Part::dout;
}

}  // namespace detail

/// One part: each of its rows is [batch, heads, dim]. Row statistics have dim 1, document ids also heads 1.
struct PartLayout {
  Part part{};                          ///< name
  Index batch = 1, heads = 1, dim = 1;  ///< extents of a row
  Index element_bytes = 1;              ///< bytes of an element

  Index row_bytes() const { return batch * heads * dim * element_bytes; }  ///< bytes of a row
};

/// Parts start on cache lines; checksums, if any, follow the last part.
struct PayloadLayout {
  static constexpr Index alignment = 64;           ///< bytes
  static constexpr std::size_t max_parts = 8;      ///< most parts of a payload
  detail::ShortList<PartLayout, max_parts> parts;  ///< in the order of their places in memory
  Index checksums = 0;                             ///< of 8 bytes each; 0: none

  bool empty() const { return parts.empty(); }  ///< true if there is no part

  /// Place of a part among the parts; their number if there is none of that name.
  std::size_t find(Part part) const {
    std::size_t p = 0;
    while (p < parts.size() && parts[p].part != part) ++p;
    return p;
  }
  bool has(Part part) const { return find(part) < parts.size(); }  ///< true if there is a part of that name
  /// Place of a part among the parts. Throws Error if there is none of that name.
  std::size_t index_of(Part part) const {
    std::size_t const p = find(part);
    detail::check<Error>(p < parts.size(), "a payload of ", parts.size(), " parts has no part ", name_of(part));
    return p;
  }

  /// Bytes of one row of all parts.
  Index bytes_per_row() const {
    Index bytes = 0;
    for (PartLayout const& part : parts) bytes += part.row_bytes();
    return bytes;
  }

  /// The layout of rows with another number of batch items.
  PayloadLayout with_batch(Index batch) const {
    PayloadLayout layout = *this;
    for (PartLayout& part : layout.parts) part.batch = batch;
    return layout;
  }

  /// Byte offset of the p-th part in a buffer for `rows` rows; of the checksums for p = number of parts.
  Index part_offset(std::size_t p, Index rows) const {
    Index offset = 0;
    for (std::size_t i = 0; i < p; ++i)
      offset += detail::ceil_divide(parts[i].row_bytes() * rows, alignment) * alignment;
    return offset;
  }

  /// Bytes of a buffer for `rows` rows, with checksums.
  Index buffer_bytes(Index rows) const {
    Index const checksum_bytes = checksums * static_cast<Index>(sizeof(std::uint64_t));
    return part_offset(parts.size(), rows) +
           (rows == 0 ? 0 : detail::ceil_divide(checksum_bytes, alignment) * alignment);
  }
};

}  // namespace annulus
