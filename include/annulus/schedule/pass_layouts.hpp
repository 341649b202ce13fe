#pragma once
// Layouts of the payloads of a pass: those that travel around the ring, and those that the ranks of a group exchange.

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/group_exchange.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/plan_request.hpp"
#include "annulus/schedule/rank_groups.hpp"

namespace annulus {

namespace detail {

/// Layouts of a ring.
struct RingLayouts {
  PayloadLayout prefetched, carried, resident;  ///< see RingPlan
};

/// `checksums`: of each payload that is sent.
RingLayouts ring_layouts(PlanRequest const& request, RankGroups const& groups, Rotation rotation, Index checksums);
/// `ring`: layouts of the rings between the groups. `keys`: of all ranks.
GroupExchange group_exchange(PlanRequest const& request, RankGroups const& groups, RingLayouts const& ring, Index keys,
                             Index checksums);

#if defined(ANNULUS_DEFINITIONS)

/// Layouts with the heads of `shape`.
class PartsOfRows {
 public:
  PartsOfRows(PlanRequest const& request, AttentionShape const& shape) : request_(request), shape_(shape) {}

  PartLayout of_queries(Part part, Index dim, Index bytes) const {
    return {part, shape_.batch, shape_.query_heads, dim, bytes};
  }
  PartLayout of_keys(Part part, Index dim, Index bytes) const {
    return {part, shape_.batch, shape_.kv_heads, dim, bytes};
  }
  /// q, and what the backward pass needs in addition. `e`: bytes of an element of the operands, as they travel.
  PayloadLayout queries(Index e) const {
    Index const l = request_.lse_bytes;
    PayloadLayout layout{{of_queries(Part::q, shape_.head_dim, e)}};
    if (request_.pass == Pass::backward)
      for (PartLayout const& part :
           {of_queries(Part::dout, shape_.value_dim, e), of_queries(Part::lse, 1, l),
            of_queries(Part::lse_remainder, 1, l), of_queries(Part::delta, 1, request_.accumulator_bytes)})
        layout.parts.push_back(part);
    return with_document_ids(layout);
  }
  PayloadLayout keys(Index e) const {
    return with_document_ids({{of_keys(Part::k, shape_.head_dim, e), of_keys(Part::v, shape_.value_dim, e)}});
  }
  PayloadLayout state() const {
    Index const a = request_.accumulator_bytes;
    return {{of_queries(Part::accumulator, shape_.value_dim, a), of_queries(Part::maximum, 1, a),
             of_queries(Part::sum, 1, a)}};
  }
  PayloadLayout query_gradient(Index bytes) const { return {{of_queries(Part::dq, shape_.head_dim, bytes)}}; }
  PayloadLayout key_gradients(Index bytes) const {
    return {{of_keys(Part::dk, shape_.head_dim, bytes), of_keys(Part::dv, shape_.value_dim, bytes)}};
  }

 private:
  PayloadLayout with_document_ids(PayloadLayout layout) const {
    if (request_.segments) layout.parts.push_back({Part::document_ids, shape_.batch, 1, 1, 4});
    return layout;
  }

  PlanRequest const& request_;
  AttentionShape const& shape_;
};

ANNULUS_INLINE RingLayouts ring_layouts(PlanRequest const& request, RankGroups const& groups, Rotation rotation,
                                        Index checksums) {
  PartsOfRows const parts(request, groups.shape());
  Index const a = request.accumulator_bytes, e = request.wire == Wire::as_stored ? request.element_bytes : 2;
  bool const forward = request.pass == Pass::forward, keys_rotate = rotation == Rotation::keys;
  PayloadLayout const of_queries = forward ? parts.state() : parts.query_gradient(a);
  PayloadLayout const of_keys = forward ? PayloadLayout{} : parts.key_gradients(a);
  RingLayouts layouts{keys_rotate ? parts.keys(e) : parts.queries(e), keys_rotate ? of_keys : of_queries,
                      keys_rotate ? of_queries : of_keys};
  layouts.prefetched.checksums = layouts.carried.checksums = checksums;
  if (groups.joins_results()) layouts.resident.checksums = checksums;
  return layouts;
}

ANNULUS_INLINE GroupExchange group_exchange(PlanRequest const& request, RankGroups const& groups,
                                            RingLayouts const& ring, Index keys, Index checksums) {
  GroupExchange exchange(groups);
  PartsOfRows const parts(request, groups.shape());
  Index const e = request.element_bytes, l = request.lse_bytes, g = request.gradient_bytes;
  auto const heads_of = [&](PairExtents const& pairs) {
    return groups.splits_heads() && pairs.heads > 1 ? pairs.heads / groups.size() : pairs.heads;
  };
  if (groups.gathers(Side::query)) {
    exchange.before(GroupRows::queries) = parts.queries(e);
    auto& pairs = exchange.before(GroupRows::pairs).parts;
    if (request.bias.heads > 0) pairs.push_back({Part::bias, request.bias.batch, heads_of(request.bias), keys, e});
    if (request.mask.heads > 0)
      pairs.push_back({Part::boolean_mask, request.mask.batch, heads_of(request.mask), keys, 1});
    if (request.pass == Pass::backward && request.bias_gradient_elements > 0)
      exchange.after(GroupRows::pairs) = {
          {{Part::dbias, 1, 1, request.bias.batch * heads_of(request.bias) * keys, request.accumulator_bytes}}};
  }
  if (groups.gathers(Side::key)) exchange.before(GroupRows::keys) = parts.keys(e);
  if (groups.splits_heads() && request.pass == Pass::forward) {
    exchange.after(GroupRows::queries) = {{parts.of_queries(Part::output, groups.shape().value_dim, e),
                                           parts.of_queries(Part::lse, 1, l),
                                           parts.of_queries(Part::lse_remainder, 1, l)}};
  } else if (groups.splits_heads()) {
    exchange.after(GroupRows::queries) = parts.query_gradient(g);
    exchange.after(GroupRows::keys) = parts.key_gradients(g);
  } else if (groups.joins_results()) {
    exchange.after(groups.gathers(Side::query) ? GroupRows::queries : GroupRows::keys) = ring.resident;
  }
  for (GroupRows rows : GroupExchange::all)
    for (PayloadLayout* layout : {&exchange.before(rows), &exchange.after(rows)})
      layout->checksums = layout->empty() ? 0 : checksums;
  return exchange;
}

#endif

}  // namespace detail

}  // namespace annulus
