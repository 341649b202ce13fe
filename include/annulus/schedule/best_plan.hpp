#pragma once
// The choice of a schedule: the plans of all schedules, compared by estimated time or by bytes.

#include <optional>
#include <utility>

#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/schedule/estimate.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// The plan of the request. Schedule::automatic: of the schedules that accept it, the one of the least estimated time
/// on ranks and links of these rates or, without rates, the one whose ranks send the fewest bytes; of equal ones the
/// first in the order of the enumeration. A double ring takes part with rates alone, whose group it has, and where rows
/// travel by messages. Groups of two_levels stay within the group of the rates. Rates with `far` but no group have that
/// of PlanRequest::near. Memory does not decide. request().schedule of the result is the one chosen. Throws as RingPlan
/// and its estimate do, and UnsupportedError for rates with another schedule.
RingPlan best_plan(PlanRequest const& request, std::optional<Rates> const& rates = {});

namespace detail {

/// True if the ranks of these rates form groups between which a double ring differs from a ring.
inline bool has_double_ring(int ranks, Rates const& rates) {
  return rates.group > 1 && rates.group < ranks && ranks % rates.group == 0;
}

}  // namespace detail

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE RingPlan best_plan(PlanRequest const& request, std::optional<Rates> const& given) {
  std::optional<Rates> rates = given;
  if (rates && rates->group == 0 && rates->has_far()) rates->group = request.near;
  auto const plan_of = [&](Schedule schedule, PlanRequest asked) {
    if (rates && rates->group > 0) asked.near = rates->group;
    asked.schedule = schedule;
    // dbias is in the result alone where that has the type of the sums, or nothing is summed, and each rank has all of
    // it.
    if (!has_groups(schedule) && (asked.gradient_bytes == asked.accumulator_bytes || asked.writes_bias_gradient))
      asked.bias_gradient_elements = 0;
    return RingPlan(std::move(asked));
  };
  detail::check<UnsupportedError>(!rates || request.schedule == Schedule::automatic, "rates with schedule ",
                                  words_of(request.schedule),
                                  ", which they do not decide; accepted: schedule automatic");
  if (request.schedule != Schedule::automatic) return plan_of(request.schedule, request);
  int const group = request.group.merged(request.ranks_per_group);
  detail::check<UnsupportedError>(group == 0, "schedule automatic with groups of ", group,
                                  " ranks; accepted: 0, which leaves their size to the schedule");
  auto const cost_of = [&](RingPlan const& plan) {
    return rates ? plan.estimate(*rates).seconds : static_cast<double>(plan.total_bytes_sent());
  };
  RingPlan best = plan_of(Schedule::ring, request);
  double least = cost_of(best);
  if (best.ranks() == 1 || request.rules.reproducible) return best;
  for (Schedule schedule : {Schedule::both_directions, Schedule::two_levels, Schedule::tiles, Schedule::all_gather}) {
    if (schedule == Schedule::all_gather && request.rotation != Rotation::automatic) continue;
    RingPlan other = plan_of(schedule, request);
    if (double const cost = cost_of(other); cost < least) {
      least = cost;
      best = std::move(other);
    }
  }
  if (rates && detail::has_double_ring(best.ranks(), *rates) && !request.zero_copy) {
    PlanRequest asked = request;
    asked.ranks_per_group = rates->group;
    if (RingPlan other = plan_of(Schedule::double_ring, asked); cost_of(other) < least) best = std::move(other);
  }
  return best;
}

#endif

}  // namespace annulus
