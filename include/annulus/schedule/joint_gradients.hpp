#pragma once
// Gradients of joint keys in a backward pass: a row for the share of each rank, and one for their sum.

#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/plan_request.hpp"

namespace annulus::detail {

/// Bytes and memory of the gradients of the joint keys and values; all 0 without them.
struct JointGradients {
  PayloadLayout layout;  ///< of a row
  Index rows;            ///< of the buffer

  JointGradients(PlanRequest const& request, Index checksums) : layout{{}, checksums}, rows(0) {
    if (request.joint_keys == 0 || request.pass == Pass::forward) return;
    AttentionShape const& s = request.shape;
    for (auto const& [part, dim] : {std::pair{Part::dk, s.head_dim}, {Part::dv, s.value_dim}})
      layout.parts.push_back({part, s.batch, request.joint_keys * s.kv_heads, dim, request.accumulator_bytes});
    rows = static_cast<Index>(request.query_lengths.size()) + 1;
  }

  /// Sent by each rank: all shares but one.
  Index bytes_sent() const { return rows > 0 ? (rows - 2) * layout.bytes_per_row() : 0; }
  Index buffer_bytes() const { return layout.buffer_bytes(rows); }
};

}  // namespace annulus::detail
