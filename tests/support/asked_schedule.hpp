#pragma once
// The schedule that the environment variable ANNULUS_TEST_SCHEDULE names, for the problems of tests that name none.

#include <annulus/attention/options.hpp>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#include "support/ring_problem.hpp"

namespace annulus_test {

/// The schedule asked for; none if the variable is not set.
inline std::optional<annulus::Schedule> asked_schedule() {
  using annulus::Schedule;
  char const* const asked = std::getenv("ANNULUS_TEST_SCHEDULE");
  if (!asked) return {};
  for (Schedule schedule :
       {Schedule::both_directions, Schedule::two_levels, Schedule::tiles, Schedule::all_gather, Schedule::double_ring})
    if (name_of(schedule) == asked) return schedule;
  throw std::invalid_argument("ANNULUS_TEST_SCHEDULE=" + std::string(asked) +
                              "; accepted: both_directions, two_levels, tiles, all_gather, double_ring");
}

/// Ranks of a group in which the schedule moves rows in its own way: the largest that it accepts, but where possible
/// not all ranks.
inline int asked_group(RingProblem const& problem, annulus::Schedule schedule) {
  int largest = 0;
  for (int size = 1; size <= problem.ranks; ++size) {
    if (problem.ranks % size != 0 || (size == problem.ranks && largest > 1)) continue;
    if (schedule != annulus::Schedule::two_levels || problem.dense.kv_heads % size == 0) largest = size;
  }
  return largest;
}

/// Options of the problem with the schedule asked for. Unchanged if the problem names one itself, and if the schedule
/// refuses it.
inline annulus::Options asked_options(RingProblem const& problem) {
  using annulus::Schedule;
  annulus::Options options = problem.options;
  auto const asked = asked_schedule();
  if (!asked || options.schedule != Schedule::ring || options.reproducible) return options;
  options.schedule = *asked;
  if (*asked == Schedule::all_gather) options.rotation = annulus::Rotation::automatic;
  if (*asked != Schedule::both_directions && *asked != Schedule::all_gather)
    options.ranks_per_group = asked_group(problem, *asked);
  return options;
}

}  // namespace annulus_test
