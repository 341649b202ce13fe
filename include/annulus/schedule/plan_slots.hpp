#pragma once
// The slots of a plan: the buffers of one rank.

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// What a builder of actions of a lane works with. The list has the slots.
class LaneBuilder {
 public:
  LaneBuilder(RingPlan const& lane, Rank rank, ActionList& list)
      : plan_(lane), rank_(rank), list_(list), writer_(list, lane.transport().lane()) {}

 protected:
  /// Number of a slot of the lane, or of the first lane, whose buffers it may share.
  int slot(SlotKind kind, int number = 0) const {
    int const own = list_.find(kind, number, transport_.lane());
    return own < 0 && transport_.shares_buffers() ? list_.find(kind, number) : own;
  }
  int slot(SlotKind kind, GroupRows rows) const { return slot(kind, static_cast<int>(rows)); }

  RingPlan const& plan_;
  Rank rank_;
  ActionList& list_;
  ActionWriter writer_;
  Transport const& transport_ = plan_.transport();
  RankGroups const& groups_ = plan_.groups();
  PlanRequest const& request_ = plan_.request();
  bool const forward_ = request_.pass == Pass::forward;
};

/// Rows of the buffers of rows that travel: of the one for the rank's own rows and, unless the exchange is zero-copy,
/// of the one for arriving rows with which it alternates. 0: not allocated.
Index prefetched_rows(RingPlan const& lane, Rank rank);
/// Rows of each carried buffer: the owner's, the one of fresh results, a second such one, and the one of arriving
/// results (zero-copy: a third one of fresh results); 0: not allocated.
std::array<Index, 4> carried_rows(RingPlan const& lane, Rank rank);

/// Appends the slots of all lanes of a plan.
void add_slots(ActionList& list, RingPlan const& plan, Rank rank);

/// Bytes of all slots. Of slots in the memory of another one, only what exceeds it counts.
Index bytes_of(std::vector<Slot> const& slots);

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE Index prefetched_rows(RingPlan const& lane, Rank rank) {
  if (lane.request().zero_copy) return lane.step(rank, 0).sent.size();
  Index rows = 0;
  for (int i = 0; i + 1 < lane.steps(); ++i)
    rows = std::max({rows, lane.step(rank, i).sent.size(), lane.step(rank, i + 1).held.size()});
  return rows;
}

ANNULUS_INLINE std::array<Index, 4> carried_rows(RingPlan const& lane, Rank rank) {
  Transport const& transport = lane.transport();
  if (transport.carried.empty()) return {};
  Index const own =
      transport.leaves ? transport.leaves->place_rows(rank, LeafSums::rotating) : lane.rotating_rows(rank).size();
  if (lane.steps() == 1) return {own, 0, 0, 0};
  bool const direct = transport.direct;
  Index fresh = 0, arriving = 0;
  for (int i = 0; i < lane.steps(); ++i) {
    if (!direct || i > 0) fresh = std::max(fresh, lane.step(rank, i).held.size());
    arriving = std::max(arriving, lane.step(rank, i).arriving.size());
  }
  int const departures = direct ? lane.steps() - 1 : lane.steps();
  if (lane.request().zero_copy) arriving = departures > 2 ? fresh : 0;
  return {direct ? own : 0, fresh, departures > 1 ? fresh : 0, arriving};
}

/// Appends the slots of one lane.
class SlotWriter : LaneBuilder {
 public:
  using LaneBuilder::LaneBuilder;

  void write() {
    add_travelling();
    add_widened();
    if (transport_.shares_buffers()) return;
    add_rounded();
    add(SlotKind::resident, 0, transport_.resident,
        transport_.leaves ? transport_.leaves->place_rows(rank_, LeafSums::resident) : plan_.resident_rows(rank_));
    for (GroupRows kind : all_group_rows) add_group(kind);
    if (!forward_) add_gradients();
  }

 private:
  /// Returns the number of the slot in the list.
  int add(SlotKind kind, int number, PayloadLayout const& layout, Index rows, bool windowed = false, int storage = -1) {
    list_.slots.push_back({kind, number, transport_.lane(), layout, layout.empty() ? 0 : rows, 1, windowed, storage});
    return static_cast<int>(list_.slots.size()) - 1;
  }

  void add_travelling() {
    bool const windowed = request_.zero_copy;
    Index const rows = prefetched_rows(plan_, rank_);
    PayloadLayout const &prefetched = transport_.prefetched, &carried = transport_.carried;
    add(SlotKind::rows, 0, prefetched, rows, windowed);
    add(SlotKind::rows, windowed ? 2 : 1, prefetched, windowed ? 0 : rows);
    std::array<Index, 4> const results = carried_rows(plan_, rank_);
    add(SlotKind::results, 0, carried.with_batch(request_.shape.batch), results[0]);
    for (int i = 1; i < (windowed ? 5 : 4); ++i) {
      bool const own = i < 4;
      add(SlotKind::results, i, carried, own ? results[static_cast<std::size_t>(i)] : 0, windowed && own);
      if (transport_.leaves) list_.slots.back().nodes = transport_.leaves->nodes_sent();
    }
  }

  /// Rows of other ranks that have arrived in a wire type, as they are read in a step.
  void add_widened() {
    PayloadLayout read;
    if (request_.has_wire()) read.parts = transport_.prefetched.parts;
    for (PartLayout& part : read.parts)
      if (has_wire_type(part.part)) part.element_bytes = request_.element_bytes;
    Index rows = 0;
    for (int i = 1; i < plan_.steps(); ++i) rows = std::max(rows, plan_.step(rank_, i).held.size());
    add(SlotKind::widened, 0, read, rows);
  }

  /// The operands that this rank works on, rounded to the wire type.
  void add_rounded() {
    AttentionShape const& shape = plan_.shape();
    PartsOfRows const parts{request_, shape}, of_own{request_, request_.shape};
    Index const e = request_.element_bytes;
    PayloadLayout queries, keys, dout;
    if (request_.has_wire()) {
      queries = {{parts.of_queries(Part::q, shape.head_dim, e)}};
      keys = {{parts.of_keys(Part::k, shape.head_dim, e), parts.of_keys(Part::v, shape.value_dim, e)}};
      if (!forward_ && groups_.gathers(Side::query))
        queries.parts.push_back(parts.of_queries(Part::dout, shape.value_dim, e));
      if (!forward_) dout = {{of_own.of_queries(Part::dout, shape.value_dim, e)}};
    }
    add(SlotKind::rounded, 0, queries, groups_.rows(Side::query, rank_));
    add(SlotKind::rounded, 1, keys, groups_.rows(Side::key, rank_));
    add(SlotKind::rounded, 2, dout, plan_.local_queries(rank_));
  }

  void add_group(GroupRows kind) {
    std::size_t const k = index_of(kind);
    int const number = static_cast<int>(k);
    Side const side = side_of(kind);
    PayloadLayout const &before = transport_.before[k], &after = transport_.after[k];
    bool const splits = groups_.splits_heads();
    Index const rows = groups_.rows(side, rank_), others = (groups_.size() - 1) * groups_.own_rows(side, rank_);
    add(SlotKind::gathered, number, before, rows);
    // The pass has the results of pairs in a slot of its own.
    add(SlotKind::group_results, number, after, splits && kind != GroupRows::pairs ? rows : 0);
    int const leaving = add(SlotKind::leaving, number, before, splits ? others : 0);
    add(SlotKind::arriving, number, after, others, false, leaving);
  }

  /// delta = rowsum(dout * output), dbias, and the gradients that are summed over the ranks.
  void add_gradients() {
    Index const a = request_.accumulator_bytes;
    PayloadLayout const delta{{{Part::delta, request_.shape.batch, request_.shape.query_heads, 1, a}}};
    add(SlotKind::delta, 0, delta, plan_.local_queries(rank_));
    PayloadLayout dbias = transport_.after[index_of(GroupRows::pairs)];
    if (dbias.empty()) dbias = {{{Part::dbias, 1, 1, request_.bias_gradient_elements, a}}};
    add(SlotKind::bias_gradient, 0, dbias, groups_.rows(Side::query, rank_));
    add(SlotKind::sink_gradients, 0, transport_.sink_shares, transport_.all_sink_rows() + 1);
    add(SlotKind::joint_gradients, 0, transport_.joint_shares, plan_.ranks() + 1);
  }
};

ANNULUS_INLINE void add_slots(ActionList& list, RingPlan const& plan, Rank rank) {
  for (RingPlan const& lane : plan.lanes()) SlotWriter(lane, rank, list).write();
}

ANNULUS_INLINE Index bytes_of(std::vector<Slot> const& slots) {
  std::vector<Index> bytes(slots.size());
  for (std::size_t s = 0; s < slots.size(); ++s) {
    Index& memory = bytes[slots[s].storage < 0 ? s : static_cast<std::size_t>(slots[s].storage)];
    memory = std::max(memory, slots[s].layout.buffer_bytes(slots[s].rows));
  }
  return std::accumulate(bytes.begin(), bytes.end(), Index{0});
}

#endif

}  // namespace annulus::detail

#if defined(ANNULUS_DEFINITIONS)
ANNULUS_INLINE annulus::Index annulus::RingPlan::peak_buffer_bytes(Rank rank) const {
  ActionList list;
  detail::add_slots(list, *this, rank);
  return detail::bytes_of(list.slots);
}
#endif
