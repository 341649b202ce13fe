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
#include "annulus/schedule/share_actions.hpp"

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
    SlotRows const delta{slots_.delta, all_rows(plan_.local_queries(rank_))};
    if (request_.has_wire()) round(GroupRows::queries, {slots_.rounded[2], delta.rows});
    if (!transport_.shares_buffers()) writer_.put(Delta{delta});
    writer_.put(Take{GroupRows::queries, delta});
  }
  /// After it: rounds operands that were not exchanged.
  void prepare_rows() {
    if (!request_.has_wire()) return;
    for (GroupRows kind : {GroupRows::queries, GroupRows::keys})
      if (Side const side = side_of(kind); !groups_.gathers(side))
        round(kind, {slots_.rounded[index_of(kind)], all_rows(groups_.rows(side, rank_))});
  }

 private:
  void round(GroupRows kind, SlotRows into) {
    if (!transport_.shares_buffers()) writer_.put(Pack{kind, into.rows, {}, into});
    writer_.put(Take{kind, into});
  }
};

}  // namespace detail

ANNULUS_INLINE ActionList actions_of(RingPlan const& plan, Rank rank) {
  using namespace detail;
  ActionList list{.slots = {}, .actions = {}, .steps = plan.steps()};
  std::vector<LaneSlots> const slots = slots_of(list.slots, plan, rank);
  std::span<RingPlan const> const lanes = plan.lanes();
  bool const grouped = plan.groups().size() > 1;
  RowRange const queries = all_rows(plan.local_queries(rank));
  ActionWriter writer(list, 0);
  std::vector<RingActions> rings;
  rings.reserve(lanes.size());
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    ActionWriter of_lane(list, static_cast<int>(l));
    OperandActions own(lanes[l], rank, slots[l], of_lane);
    own.prepare_queries();
    if (grouped) GroupActions(plan, rank, slots[l], of_lane).before();
    own.prepare_rows();
    rings.emplace_back(lanes[l], rank, slots[l], of_lane,
                       lanes[l].transport().shares_buffers() ? &rings.front() : nullptr);
    rings.back().prepare();
  }
  writer.at(Action::before_steps, Phase::prepare);
  if (plan.request().bias_gradient)
    writer.put(Clear{{slots[0].bias_gradient, all_rows(plan.groups().rows(Side::query, rank))}});
  for (int i = 0; i < plan.steps(); ++i)
    for (auto const phase : {&RingActions::fetch, &RingActions::compute, &RingActions::await_results,
                             &RingActions::join_results, &RingActions::send_results, &RingActions::await_rows})
      for (RingActions& ring : rings) (ring.*phase)(i);
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    rings[l].finish();
    if (!grouped) ShareActions(lanes[l], rank, slots[l], ActionWriter(list, static_cast<int>(l))).finish();
  }
  writer.at(plan.steps() - 1, Phase::finish);
  if (plan.request().bias_gradient && !plan.groups().gathers(Side::query))
    writer.put(Finish{{slots[0].bias_gradient, queries}, queries});
  if (!grouped) return list;
  GroupActions(plan, rank, slots[0], writer).after();
  ShareActions(plan, rank, slots[0], writer).finish();
  return list;
}

}  // namespace annulus
#endif
