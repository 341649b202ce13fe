#pragma once
// Transport of a lane: how its rows and sums travel between ranks. Offsets from rank to rank, rows of each rank, and
// layouts of what ranks exchange on the rings and in groups.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/core/index.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/leaf_schedule.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/schedule/plan_request.hpp"
#include "annulus/schedule/rank_groups.hpp"

namespace annulus::detail {

/// Offsets 0 .. ranks - 1 between the ranks of a ring. On a double ring of inner rings of n consecutive ranks, offset
/// o * n + i leads o groups on and i places on in the ring of the group, so that the distance in ranks depends on the
/// rank: of 6 ranks in inner rings of 3, offset 4 leads from rank 0 to rank 4, and from rank 2 to rank 3. A plain ring
/// is one inner ring of all ranks: offset d leads d ranks on.
struct RankOffsets {
  int ranks = 1;
  int inner = 1;  ///< ranks of an inner ring, which divides the ranks

  /// The rank to which the offset leads from `rank`.
  Rank forward(Rank rank, int offset) const {
    return (rank / inner + offset / inner) % (ranks / inner) * inner + (rank + offset) % inner;
  }
  /// The rank from which the offset leads to `rank`.
  Rank backward(Rank rank, int offset) const { return forward(rank, difference(offset, 0)); }
  /// The offset that leads on from where `from` leads to where `to` leads.
  int difference(int from, int to) const {
    return rank_at(to / inner - from / inner, ranks / inner) * inner + rank_at(to - from, inner);
  }
  /// Distance in ranks, 0 .. ranks - 1, from `rank` to where the offset leads.
  int distance(Rank rank, int offset) const { return rank_at(forward(rank, offset) - rank, ranks); }
  /// The distances of all ranks: two if the offset leads some of them past the end of their inner ring.
  ShortList<int, 2> distances(int offset) const {
    int const first = distance(0, offset), last = distance(inner - 1, offset);
    return first == last ? ShortList<int, 2>{first} : ShortList<int, 2>{first, last};
  }
};

/// Parts of rows with the heads of `shape`.
struct PartsOfRows {
  PlanRequest const& request;
  AttentionShape const& shape;

  PartLayout of_queries(Part part, Index dim, Index bytes) const {
    return {part, shape.batch, shape.query_heads, dim, bytes};
  }
  PartLayout of_keys(Part part, Index dim, Index bytes) const {
    return {part, shape.batch, shape.kv_heads, dim, bytes};
  }
  /// q, and what the backward pass needs in addition. `e`: bytes of an element of the operands, as they travel.
  PayloadLayout queries(Index e) const {
    PayloadLayout layout{{of_queries(Part::q, shape.head_dim, e)}};
    if (request.pass == Pass::backward)
      for (PartLayout const& part :
           {of_queries(Part::dout, shape.value_dim, e), of_queries(Part::lse, 1, request.lse_bytes),
            of_queries(Part::lse_remainder, 1, request.lse_bytes),
            of_queries(Part::delta, 1, request.accumulator_bytes)})
        layout.parts.push_back(part);
    return with_document_ids(layout);
  }
  PayloadLayout keys(Index e) const {
    return with_document_ids({{of_keys(Part::k, shape.head_dim, e), of_keys(Part::v, shape.value_dim, e)}});
  }
  PayloadLayout state() const {
    Index const a = request.accumulator_bytes;
    return {{of_queries(Part::accumulator, shape.value_dim, a), of_queries(Part::maximum, 1, a),
             of_queries(Part::sum, 1, a)}};
  }
  PayloadLayout query_gradient(Index bytes) const { return {{of_queries(Part::dq, shape.head_dim, bytes)}}; }
  PayloadLayout key_gradients(Index bytes) const {
    return {{of_keys(Part::dk, shape.head_dim, bytes), of_keys(Part::dv, shape.value_dim, bytes)}};
  }
  PayloadLayout with_document_ids(PayloadLayout layout) const {
    if (request.document_ids) layout.parts.push_back({Part::document_ids, shape.batch, 1, 1, 4});
    return layout;
  }
};

/// What the builders of actions and the passes read of a lane of a plan.
struct Transport {
  RankGroups groups{};
  Rotation rotation = Rotation::keys;  ///< never automatic
  RankOffsets rank_offsets{};
  std::vector<int> offsets{};  ///< of the steps
  /// Results are sent directly to their owner after each step: only parts of shards travel (local and block masks), or
  /// the owner joins them (reproducible). Otherwise they travel on with their rows and reach the owner with the last
  /// shift.
  bool direct = false;
  bool backwards = false;          ///< rows travel to rank r - 1, not r + 1
  std::vector<RowRange> halves{};  ///< of the rows of each rank, for a lane of a plan that halves them; empty: all rows
  std::optional<LeafSchedule> leaves{};  ///< of a reproducible pass

  PayloadLayout prefetched{}, carried{};  ///< of a row that travels ahead of the compute of a step, and after it
  PayloadLayout resident{};               ///< of a row of sums that stays with its rank
  /// By GroupRows: operands that the ranks of a group exchange before the rings, and results that they send to the
  /// owners of their rows after them. A layout without parts: rows of that kind are not exchanged.
  std::array<PayloadLayout, 3> before{}, after{};
  PayloadLayout sink_shares{}, joint_shares{};  ///< backward: gradients that are summed over the ranks

  /// Sets the layouts. The carried one is of one partial result for each row.
  void set_layouts(PlanRequest const& request, Index global_keys);

  template <class T>
  BySide<T> by_side(T const& stays, T const& travels) const {
    return detail::by_side(keys_rotate(), stays, travels);
  }
  bool keys_rotate() const { return rotation == Rotation::keys; }
  Side rotating_side() const { return keys_rotate() ? Side::key : Side::query; }
  Side resident_side() const { return keys_rotate() ? Side::query : Side::key; }
  int lane() const { return backwards ? 1 : 0; }  ///< number of the lane
  bool halves_rows() const { return !halves.empty(); }
  /// True for the second lane of a plan that halves the rows. What stays with a rank is in the buffers of the first
  /// one: sums that stay, delta, its operands in the wire type, and gradients of the bias, of sink logits and of joint
  /// keys.
  bool shares_buffers() const { return halves_rows() && backwards; }
  RowRange rotating_rows(Rank rank) const {
    return halves_rows() ? halves[static_cast<std::size_t>(rank)] : RowRange{0, groups.rows(rotating_side(), rank)};
  }
  /// The queries whose pairs with joint keys the rank computes, among those that it works on.
  RowRange joint_queries(Rank rank) const {
    if (halves_rows() && !keys_rotate()) return rotating_rows(rank);
    return shares_buffers() ? RowRange{} : groups.joint_queries(rank);
  }

  int steps() const { return static_cast<int>(offsets.size()); }
  int offset(int step) const { return offsets[static_cast<std::size_t>(step)]; }
  /// Offset of the prefetched shift between step i and i + 1.
  int prefetched_hop(int step) const { return rank_offsets.difference(offset(step), offset(step + 1)); }
  /// Offset of the carried shift after step i; 0: there is none.
  int carried_hop(int step) const {
    if (carried.empty()) return 0;
    return !direct && step + 1 < steps() ? prefetched_hop(step) : rank_offsets.difference(offset(step), 0);
  }

  /// Rows of a rank's shares in the gradients of sink logits: one, or (reproducible) one for each leaf of its queries.
  RowRange sink_rows(Rank rank) const {
    return leaves ? leaves->grid().ordered_by_rank(Side::query, rank) : RowRange{rank, rank + 1};
  }
  /// Rows of the shares of all ranks. One more is for their sum.
  Index all_sink_rows() const { return sink_rows(rank_offsets.ranks - 1).end; }

  /// Bytes that the rank sends to each other rank of its group before the rings, without checksums.
  Index bytes_before(Rank rank) const {
    Index bytes = 0;
    for (GroupRows rows : all_group_rows)
      bytes += groups.own_rows(side_of(rows), rank) * before[index_of(rows)].bytes_per_row();
    return bytes;
  }
  /// Bytes that it sends to a member of its group after the rings.
  Index bytes_after(Rank rank, int member) const {
    Index bytes = 0;
    for (GroupRows rows : all_group_rows)
      bytes += groups.member_rows(side_of(rows), rank, member).size() * after[index_of(rows)].bytes_per_row();
    return bytes;
  }
  /// Bytes that it sends to the other ranks of its group in all.
  Index bytes_in_group(Rank rank) const {
    Index bytes = (groups.size() - 1) * bytes_before(rank);
    for (int member = 0; member < groups.size(); ++member)
      if (member != groups.place(rank)) bytes += bytes_after(rank, member);
    return bytes;
  }
};

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE void Transport::set_layouts(PlanRequest const& request, Index global_keys) {
  AttentionShape const &of_rings = groups.shape(), &own = request.shape;
  PartsOfRows const parts{request, of_rings};
  Index const a = request.accumulator_bytes, e = request.element_bytes, l = request.lse_bytes;
  Index const travelling = request.has_wire() ? 2 : e;
  bool const forward = request.pass == Pass::forward, splits = groups.splits_heads();
  prefetched = keys_rotate() ? parts.keys(travelling) : parts.queries(travelling);
  resident = forward ? parts.state() : parts.query_gradient(a);
  carried = forward ? PayloadLayout{} : parts.key_gradients(a);
  if (!keys_rotate()) std::swap(resident, carried);
  auto const heads_of = [&](PairExtents const& of_pairs) {
    return splits && of_pairs.heads > 1 ? of_pairs.heads / groups.size() : of_pairs.heads;
  };
  auto& [queries, keys, pairs] = before;
  auto& [of_queries, of_keys, of_pairs] = after;
  before = after = {};
  if (groups.gathers(Side::query)) {
    queries = parts.queries(travelling);
    if (request.bias.heads > 0)
      pairs.parts.push_back({Part::bias, request.bias.batch, heads_of(request.bias), global_keys, e});
    if (request.mask.heads > 0)
      pairs.parts.push_back({Part::boolean_mask, request.mask.batch, heads_of(request.mask), global_keys, 1});
    if (!forward && request.bias_gradient_elements > 0)
      of_pairs = {{{Part::dbias, 1, 1, request.bias.batch * heads_of(request.bias) * global_keys, a}}};
  }
  if (groups.gathers(Side::key)) keys = parts.keys(travelling);
  if (splits && forward) {
    of_queries = {{parts.of_queries(Part::output, of_rings.value_dim, e), parts.of_queries(Part::lse, 1, l),
                   parts.of_queries(Part::lse_remainder, 1, l)}};
  } else if (splits) {
    of_queries = parts.query_gradient(request.gradient_bytes);
    of_keys = parts.key_gradients(request.gradient_bytes);
  } else if (groups.joins_results()) {
    (groups.gathers(Side::query) ? of_queries : of_keys) = resident;
  }
  sink_shares = joint_shares = {};
  if (!forward) sink_shares = {{{Part::dsinks, 1, own.query_heads, request.sinks, a}}};
  if (!forward && request.joint_keys > 0)
    for (auto const& [part, dim] : {std::pair{Part::dk, own.head_dim}, {Part::dv, own.value_dim}})
      joint_shares.parts.push_back({part, own.batch, request.joint_keys * own.kv_heads, dim, a});
  // One for every rank that reads a buffer, and at least one for sending and one for receiving.
  Index const checksums = request.checked ? std::max(2, rank_offsets.ranks) : 0;
  for (PayloadLayout* layout :
       {&prefetched, &carried, &queries, &keys, &pairs, &of_queries, &of_keys, &of_pairs, &sink_shares, &joint_shares})
    layout->checksums = layout->empty() ? 0 : checksums;
  resident.checksums = groups.joins_results() ? checksums : 0;
}

#endif

}  // namespace annulus::detail
