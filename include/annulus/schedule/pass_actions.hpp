#pragma once
// The list of actions of one rank in a pass: operands are prepared and exchanged in groups, the lanes of the plan take
// turns around the ring, results return to their owners and small gradients are summed over all ranks.

#include <span>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// The actions of a rank; see schedule/action.hpp. Takes time and memory linear in the steps of the rank or, of a
/// reproducible plan, in its pairs of leaves. All ranks have the same steps, each actions of its own.
ActionList actions_of(RingPlan const& plan, Rank rank);

}  // namespace annulus

#if defined(ANNULUS_DEFINITIONS)
#include "annulus/schedule/group_actions.hpp"
#include "annulus/schedule/ring_actions.hpp"

namespace annulus {

namespace detail {

/// Rounds operands of a rank's own rows to the wire type, and computes delta. A lane that shares buffers takes what the
/// first one has computed.
class OperandActions : LaneBuilder {
 public:
  using LaneBuilder::LaneBuilder;

  /// Before an exchange of operands.
  void prepare_queries() {
    writer_.at(Action::before_steps, Phase::prepare);
    if (forward_) return;
    SlotRows const delta{slot(SlotKind::delta), all_rows(plan_.local_queries(rank_))};
    if (request_.has_wire()) round(GroupRows::queries, {slot(SlotKind::rounded, 2), delta.rows});
    if (!transport_.shares_buffers()) writer_.put(Delta{delta});
    writer_.put(Take{GroupRows::queries, delta});
  }
  /// After it: rounds operands that were not exchanged.
  void prepare_rows() {
    if (!request_.has_wire()) return;
    for (GroupRows kind : {GroupRows::queries, GroupRows::keys})
      if (Side const side = side_of(kind); !groups_.gathers(side))
        round(kind, {slot(SlotKind::rounded, kind), all_rows(groups_.rows(side, rank_))});
  }

 private:
  void round(GroupRows kind, SlotRows into) {
    if (!transport_.shares_buffers()) writer_.put(Pack{kind, into.rows, {}, into});
    writer_.put(Take{kind, into});
  }
};

/// Small sums over all ranks, with the same bits on each: every rank receives the shares of all, and adds them itself.
/// Gradients of sink logits and of joint keys.
class ShareActions : LaneBuilder {
 public:
  using LaneBuilder::LaneBuilder;

  /// Sums and finishes the gradients that the pass has.
  void finish() {
    if (forward_ || transport_.shares_buffers()) return;
    writer_.at(plan_.steps() - 1, Phase::finish);
    if (request_.joint_keys > 0) sum_joint_gradients();
    if (request_.sinks > 0) sum_sink_gradients();
  }

 private:
  SlotRows row(int slot, Index index) const { return {slot, {index, index + 1}}; }

  /// Adds in rank order.
  void sum_joint_gradients() {
    // Their checksum codes begin at `ranks`; those of the sink logits are below.
    gather(slot(SlotKind::joint_gradients), plan_.ranks(), [](Rank rank) { return RowRange{rank, rank + 1}; });
    sum_in_order(slot(SlotKind::joint_gradients), plan_.ranks());
  }

  /// Adds in rank order, or (reproducible) in the tree over the leaves of the queries.
  void sum_sink_gradients() {
    int const sinks = slot(SlotKind::sink_gradients);
    Index const sum = transport_.all_sink_rows();
    LeafGrid const* const grid = transport_.leaves ? &transport_.leaves->grid() : nullptr;
    if (!grid) writer_.put(SinkShare{all_rows(plan_.local_queries(rank_)), row(sinks, rank_)});
    if (grid)
      for (Index const index : grid->of_rank(Side::query, rank_)) {
        Leaf const& leaf = grid->leaf(Side::query, index);
        writer_.put(SinkShare{leaf.local_rows(), row(sinks, leaf.place)});
      }
    gather(sinks, 0, [&](Rank rank) { return transport_.sink_rows(rank); });
    if (!grid) return sum_in_order(sinks, sum);
    auto const place = [&](Index index) { return grid->leaf(Side::query, index).place; };
    Index const leaves = grid->count(Side::query);
    writer_.put(Clear{row(sinks, sum)});
    for (Index width = 1; width < leaves; width *= 2)
      for (Index begin = 0; begin + width < leaves; begin += 2 * width)
        writer_.put(Join{row(sinks, place(begin)), row(sinks, place(begin + width))});
    if (leaves > 0) writer_.put(Join{row(sinks, sum), row(sinks, place(0))});
    writer_.put(Finish{row(sinks, sum), {0, 1}});
  }

  /// Row `sum` of the slot becomes the sum of those before it.
  void sum_in_order(int slot, Index sum) {
    writer_.put(Clear{row(slot, sum)});
    for (Index share = 0; share < sum; ++share) writer_.put(Join{row(slot, sum), row(slot, share)});
    writer_.put(Finish{row(slot, sum), {0, 1}});
  }

  /// Sends the shares of all ranks once around the ring. rows_of(rank): rows of its shares.
  template <class RowsOf>
  void gather(int slot, int first_code, RowsOf&& rows_of) {
    int const ranks = plan_.ranks(), ahead = transport_.backwards ? -1 : 1;
    auto const at = [&](int places) { return rank_at(rank_ - places * ahead, ranks); };
    for (int i = 0; i + 1 < ranks; ++i) {
      int const exchange = writer_.exchanges(1);
      writer_.put(Shift{.channel = Channel::reduction,
                        .hop = rank_at(ahead, ranks),
                        .out = {slot, rows_of(at(i))},
                        .in = {slot, rows_of(at(i + 1))},
                        .sender = at(1),
                        .exchange = exchange,
                        .leaving_code = first_code + i,
                        .arriving_code = first_code + i});
      writer_.put(Await{exchange});
    }
  }
};

}  // namespace detail

ANNULUS_INLINE ActionList actions_of(RingPlan const& plan, Rank rank) {
  using namespace detail;
  ActionList list{.slots = {}, .actions = {}, .steps = plan.steps()};
  add_slots(list, plan, rank);
  std::span<RingPlan const> const lanes = plan.lanes();
  bool const grouped = plan.groups().size() > 1;
  RowRange const queries = all_rows(plan.local_queries(rank));
  ActionWriter writer(list, 0);
  std::vector<RingActions> rings;
  rings.reserve(lanes.size());
  for (RingPlan const& lane : lanes) {
    OperandActions own(lane, rank, list);
    own.prepare_queries();
    if (grouped) GroupActions(plan, rank, list).before();
    own.prepare_rows();
    rings.emplace_back(lane, rank, list, lane.transport().shares_buffers() ? &rings.front() : nullptr);
    rings.back().prepare();
  }
  writer.at(Action::before_steps, Phase::prepare);
  if (plan.request().bias_gradient)
    writer.put(Clear{{list.find(SlotKind::bias_gradient, 0), all_rows(plan.groups().rows(Side::query, rank))}});
  for (int i = 0; i < plan.steps(); ++i)
    for (auto const phase : {&RingActions::fetch, &RingActions::compute, &RingActions::await_results,
                             &RingActions::join_results, &RingActions::send_results, &RingActions::await_rows})
      for (RingActions& ring : rings) (ring.*phase)(i);
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    rings[l].finish();
    if (!grouped) ShareActions(lanes[l], rank, list).finish();
  }
  writer.at(plan.steps() - 1, Phase::finish);
  if (plan.request().bias_gradient && !plan.groups().gathers(Side::query))
    writer.put(Finish{{list.find(SlotKind::bias_gradient, 0), queries}, queries});
  if (!grouped) return list;
  GroupActions(plan, rank, list).after();
  ShareActions(plan, rank, list).finish();
  return list;
}

}  // namespace annulus
#endif
