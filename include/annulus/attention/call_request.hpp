#pragma once
// The plan that a call asks for, and whether the backend supports what it makes the ranks compute.

#include <algorithm>
#include <cstddef>
#include <span>

#include "annulus/attention/collective_call.hpp"
#include "annulus/attention/options.hpp"
#include "annulus/attention/validate.hpp"
#include "annulus/backend/backend.hpp"
#include "annulus/schedule/best_plan.hpp"
#include "annulus/tensor/operands.hpp"

namespace annulus::detail {

/// Length of the runs of consecutive ranks that are near each other. `lowest`: TopologyAwareCommunicator::near_ranks(),
/// of `ranks` ranks. If the ranks of a run are not consecutive, or the runs not equally long: 0 with two levels, which
/// choose other groups; with another schedule, throws UnsupportedError.
inline int consecutive_near_ranks(std::span<Rank const> lowest, int ranks, Schedule schedule) {
  check<Error>(lowest.size() == static_cast<std::size_t>(ranks), "near_ranks() of the communicator has ", lowest.size(),
               " entries; accepted: one for each of ", ranks, " ranks");
  auto const near = static_cast<int>(std::count(lowest.begin(), lowest.end(), lowest.front()));
  for (std::size_t r = 0; r < lowest.size(); ++r) {
    Rank const expected = static_cast<Rank>(r) / near * near;
    if (lowest[r] == expected && ranks % near == 0) continue;
    if (schedule == Schedule::two_levels) return 0;
    check<UnsupportedError>(false, "schedule ", words_of(schedule),
                            " without a group takes the ranks that are near each other, which must be consecutive "
                            "and equally many everywhere; ",
                            near, " of ", lowest.size(), " ranks are near rank 0, and rank ", lowest[r],
                            " is the first near rank ", r, "; accepted: a group, or ranks in another order");
  }
  return near;
}

/// PlanRequest::near of a call: as the communicator says, if the options leave it to the communicator and the schedule
/// takes it; otherwise 0. Throws UnsupportedError where near ranks are needed and form no groups, or are not known.
template <Communicator C>
int near_of(C const& communicator, Options const& options) {
  bool const by_rates =
      options.schedule == Schedule::automatic && options.rates && options.rates->group == 0 && options.rates->has_far();
  if constexpr (!TopologyAwareCommunicator<C>) {
    check<UnsupportedError>(
        !by_rates,
        "rates of far links without a group, on a communicator that does not say which ranks are "
        "near each other; accepted: the number of consecutive near ranks as the group of the rates");
  } else if (options.ranks_per_group == 0) {
    if (by_rates || options.schedule == Schedule::two_levels || options.schedule == Schedule::double_ring)
      return consecutive_near_ranks(communicator.near_ranks(), communicator.size(), options.schedule);
  }
  return 0;
}

/// The plan of a call on backend B. `records`: of all ranks; `gradient_bytes`: of an element of dq, dk, dv and
/// dbias in the backward pass; `near`: near_of.
template <class B, class T, class Space>
PlanRequest request_of(CollectiveCall const& call, Problem const& problem, Options const& options,
                       Operands<T, Space> const& operands, std::span<CallRecord const> records, bool zero_copy,
                       int gradient_bytes, int near) {
  PlanRequest request{.pass = call.pass,
                      .shape = problem.shape,
                      .query_lengths = {},
                      .key_lengths = {},
                      .sharding = options.sharding,
                      .rules = problem.rules,
                      .rotation = options.rotation,
                      .schedule = options.schedule,
                      .ranks_per_group = options.schedule == Schedule::double_ring && options.ranks_per_group == 0
                                             ? near
                                             : options.ranks_per_group,
                      .wire = options.wire,
                      .element_bytes = static_cast<int>(sizeof(T)),
                      .accumulator_bytes = static_cast<int>(sizeof(AccumulatorOf<B, T>)),
                      .lse_bytes = static_cast<int>(sizeof(Accumulator<T>)),
                      .gradient_bytes = gradient_bytes,
                      .sinks = operands.sinks ? operands.sinks->extent(1) : 0,
                      .joint_keys = problem.joint_keys,
                      .document_ids = static_cast<bool>(operands.query_documents),
                      .elementwise = problem.predicate || operands.mask,
                      .bound_to_queries = operands.bias || operands.mask,
                      .zero_copy = zero_copy && options.schedule != Schedule::double_ring,
                      .checked = call.checked,
                      .near = near};
  for (CallRecord const& other : records) {
    request.query_lengths.push_back(other.local_queries);
    request.key_lengths.push_back(other.local_keys);
  }
  if (operands.bias) request.bias = {operands.bias->extent(0), operands.bias->extent(1)};
  if (operands.mask) request.mask = {operands.mask->extent(0), operands.mask->extent(1)};
  if (operands.bias_gradient) add_bias_gradient(request, ClosingBackend<B>);
  return request;
}

/// Throws UnsupportedError, on all ranks, if the backend does not support the rows and heads that the ranks of a group
/// work on together.
template <class B>
void require_support_of_groups(B const& backend, Problem problem, RingPlan const& plan) {
  if (plan.groups().size() == 1) return;
  problem.shape = plan.shape();
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    problem.local_queries = plan.groups().rows(Side::query, rank);
    problem.local_keys = plan.groups().rows(Side::key, rank);
    require_support(backend, problem);
  }
}

}  // namespace annulus::detail
