#pragma once
// The list of actions of one rank in a pass: operands are prepared and exchanged in groups, the lanes of the plan take
// turns around the ring, results return to their owners and small sums are made over all ranks.

#include <memory>
#include <optional>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// The actions of a rank; see schedule/action.hpp. Takes time and memory linear in the steps of the rank or, of a
/// reproducible plan, in its pairs of leaves. Every rank has as many steps, and actions of its own.
ActionList actions_of(RingPlan const& plan, Rank rank);

}  // namespace annulus

#if defined(ANNULUS_DEFINITIONS)
#include "annulus/schedule/group_actions.hpp"
#include "annulus/schedule/leaf_actions.hpp"
#include "annulus/schedule/ring_actions.hpp"
#include "annulus/schedule/share_actions.hpp"

namespace annulus {

namespace detail {

/// Rounds operands of a rank's own rows to the wire type, and computes delta. A lane that shares buffers takes what the
/// first one has computed.
class OwnOperands {
 public:
  OwnOperands(RingPlan const& plan, Rank rank, LaneSlots const& slots, ActionWriter writer)
      : plan_(plan), rank_(rank), slots_(slots), writer_(writer) {
    writer_.at(Action::before_steps, Phase::prepare);
  }

  /// Before an exchange of operands.
  void prepare_queries() {
    if (plan_.request().pass == Pass::forward) return;
    Index const queries = plan_.local_queries(rank_);
    if (has_wire()) round(GroupRows::queries, {slots_.rounded[2], all_rows(queries)});
    SlotRows const delta{slots_.delta, all_rows(queries)};
    if (!plan_.shares_buffers()) writer_.put(Delta{delta});
    writer_.put(Take{GroupRows::queries, delta});
  }
  /// After it: what was not exchanged.
  void prepare_rows() {
    if (!has_wire()) return;
    for (GroupRows kind : {GroupRows::queries, GroupRows::keys})
      if (!plan_.groups().gathers(side_of(kind)))
        round(kind, {slots_.rounded[static_cast<std::size_t>(kind)], all_rows(plan_.groups().rows(side_of(kind), rank_))});
  }

 private:
  bool has_wire() const { return plan_.request().wire != Wire::as_stored; }
  void round(GroupRows kind, SlotRows into) {
    if (!plan_.shares_buffers()) writer_.put(Pack{kind, into.rows, {}, into});
    writer_.put(Take{kind, into});
  }

  RingPlan const& plan_;
  Rank rank_;
  LaneSlots slots_;
  ActionWriter writer_;
};

/// Calls phase(lane) for each lane of a pass.
inline void for_each_lane(std::vector<RingActions>& rings, void (RingActions::*phase)(int), int step) {
  for (RingActions& ring : rings) (ring.*phase)(step);
}

}  // namespace detail

ANNULUS_INLINE ActionList actions_of(RingPlan const& plan, Rank rank) {
  using namespace detail;
  ActionList list{.slots = {}, .actions = {}, .steps = plan.steps()};
  std::vector<LaneSlots> const slots = slots_of(list.slots, plan, rank);
  std::span<RingPlan const> const lanes = plan.lanes();
  bool const grouped = plan.groups().size() > 1;
  ActionWriter writer(list, 0);
  std::vector<std::unique_ptr<LeafActions>> leaves;
  std::vector<RingActions> rings;
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    ActionWriter of_lane(list, static_cast<int>(l));
    OwnOperands own(lanes[l], rank, slots[l], of_lane);
    own.prepare_queries();
    if (grouped) GroupActions(plan, rank, slots[l], of_lane).before();
    own.prepare_rows();
    if (plan.leaves()) {
      LeafActions* const first = lanes[l].shares_buffers() ? leaves.front().get() : nullptr;
      leaves.push_back(std::make_unique<LeafActions>(lanes[l], rank, slots[l], first));
    }
    rings.emplace_back(lanes[l], rank, slots[l], of_lane, plan.leaves() ? leaves.back().get() : nullptr);
    rings.back().prepare();
  }
  writer.at(Action::before_steps, Phase::prepare);
  if (plan.request().bias_gradient) writer.put(Clear{{slots[0].bias_gradient, all_rows(plan.groups().rows(Side::query, rank))}});
  for (int i = 0; i < plan.steps(); ++i)
    for (auto const phase : {&RingActions::fetch, &RingActions::compute, &RingActions::await, &RingActions::join,
                             &RingActions::send, &RingActions::arrive})
      for_each_lane(rings, phase, i);
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    rings[l].finish();
    if (!grouped) ShareActions(lanes[l], rank, slots[l], ActionWriter(list, static_cast<int>(l))).finish();
  }
  writer.at(plan.steps() - 1, Phase::finish);
  bool const bias_in_group = plan.groups().gathers(Side::query);
  if (plan.request().bias_gradient && !bias_in_group)
    writer.put(Finish{{slots[0].bias_gradient, all_rows(plan.local_queries(rank))}, all_rows(plan.local_queries(rank))});
  if (!grouped) return list;
  GroupActions(plan, rank, slots[0], writer).after();
  ShareActions(plan, rank, slots[0], writer).finish();
  return list;
}

}  // namespace annulus
#endif
