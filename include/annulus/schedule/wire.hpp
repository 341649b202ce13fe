#pragma once
// Wire type: the element type in which operands travel.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "annulus/core/index.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/planned_step.hpp"

namespace annulus {

/// Element type of q, k, v and dout on their way between ranks.
enum class Wire : std::uint8_t {
  as_stored,  ///< their own
  bfloat16,   ///< float and double operands are rounded to bfloat16
  half,       ///< they are rounded to half: larger values than 65504 become infinite
};

constexpr std::string_view name_of(Wire wire) {
  constexpr std::string_view names[] = {"as_stored", "bfloat16", "half"};
  return names[static_cast<std::size_t>(wire)];
}

namespace detail {

/// True for the parts that are rounded to the wire type.
constexpr bool has_wire_type(Part part) {
  return part == Part::q || part == Part::k || part == Part::v || part == Part::dout;
}

/// Buffers of a rank for a wire type: its own operands, rounded, and the rows of a step, widened. Empty without one.
struct WireBuffers {
  PayloadLayout queries, keys;  ///< of a row of q and dout, or of k and v, rounded
  PayloadLayout read;           ///< of a row as it is read in a step
  Index query_rows = 0, key_rows = 0, read_rows = 0;

  /// prefetched: layout of what travels. arriving: the steps whose rows are those of other ranks.
  WireBuffers(Wire wire, Pass pass, AttentionShape const& shape, int element_bytes, PayloadLayout const& prefetched,
              std::span<PlannedStep const> arriving, std::array<Index, 2> local_rows) {
    if (wire == Wire::as_stored) return;
    queries.parts.push_back({Part::q, shape.batch, shape.query_heads, shape.head_dim, element_bytes});
    if (pass == Pass::backward)
      queries.parts.push_back({Part::dout, shape.batch, shape.query_heads, shape.value_dim, element_bytes});
    keys.parts.push_back({Part::k, shape.batch, shape.kv_heads, shape.head_dim, element_bytes});
    keys.parts.push_back({Part::v, shape.batch, shape.kv_heads, shape.value_dim, element_bytes});
    query_rows = local_rows[0];
    key_rows = local_rows[1];
    read.parts = prefetched.parts;
    for (PartLayout& part : read.parts)
      if (has_wire_type(part.part)) part.element_bytes = element_bytes;
    for (PlannedStep const& step : arriving) read_rows = std::max(read_rows, step.held.size());
  }

  Index bytes() const {
    return queries.buffer_bytes(query_rows) + keys.buffer_bytes(key_rows) + read.buffer_bytes(read_rows);
  }
};

}  // namespace detail

}  // namespace annulus
