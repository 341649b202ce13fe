#pragma once
// The caller's tensors of a plan: bytes of the operands and results of one rank.

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/ring_plan.hpp"

#if defined(ANNULUS_DEFINITIONS)

namespace annulus {

namespace detail {

/// Elements of the tensors that a rank passes and gets.
struct TensorSizes {
  TensorSizes(RingPlan const& plan, Rank rank) : request(plan.request()) {
    AttentionShape const& shape = request.shape;
    Index const rows = plan.local_queries(rank), head_rows = shape.batch * shape.query_heads * rows;
    q = head_rows * shape.head_dim;
    output = head_rows * shape.value_dim;
    lse = 2 * head_rows;
    keys = shape.batch * shape.kv_heads * plan.local_keys(rank) * (shape.head_dim + shape.value_dim);
    joint_keys = shape.batch * shape.kv_heads * request.joint_keys * (shape.head_dim + shape.value_dim);
    sinks = shape.query_heads * request.sinks;
    bias = request.bias.batch * request.bias.heads * rows * plan.global_keys();
    mask = request.mask.batch * request.mask.heads * rows * plan.global_keys();
    documents = request.document_ids ? shape.batch * (rows + plan.local_keys(rank)) : 0;
  }

  PlanRequest const& request;
  Index q, output;  ///< and dq; dout
  Index lse;        ///< with its remainder
  Index keys;       ///< k and v together, or dk and dv
  Index joint_keys, sinks, bias, mask, documents;
};

}  // namespace detail

ANNULUS_INLINE Index RingPlan::operand_bytes(Rank rank) const {
  constexpr Index mask_bytes = 1, document_bytes = 4;
  detail::TensorSizes const t(*this, rank);
  Index const once = (t.q + t.keys + t.joint_keys + t.bias) * request_.element_bytes +
                     t.sinks * request_.accumulator_bytes + t.mask * mask_bytes + t.documents * document_bytes;
  if (request_.pass == Pass::forward) return once;
  return once + 2 * t.output * request_.element_bytes + t.lse * request_.lse_bytes;
}

ANNULUS_INLINE Index RingPlan::result_bytes(Rank rank) const {
  detail::TensorSizes const t(*this, rank);
  if (request_.pass == Pass::forward) return t.output * request_.element_bytes + t.lse * request_.lse_bytes;
  Index const dbias = request_.bias_gradient ? t.bias : 0;
  return (t.q + t.keys + t.joint_keys + dbias) * request_.gradient_bytes + t.sinks * request_.accumulator_bytes;
}

}  // namespace annulus

#endif
