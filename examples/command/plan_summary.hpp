#pragma once
// Summary of a ring plan that has too many steps to list one by one.

#include <annulus/schedule/ring_plan.hpp>
#include <ostream>
#include <vector>

namespace annulus_command {

/// Plans with more steps than this, summed over all ranks, are summarised unless every step is asked for.
inline constexpr annulus::Index most_listed_steps = 1024;

/// Least and largest value over the ranks.
struct Spread {
  annulus::Index least = 0, most = 0;

  bool operator==(Spread const&) const = default;
};

/// Consecutive steps with equal entries. Each Spread is the least and the most over the ranks, per step.
struct StepsInSummary {
  int first = 0, last = 0;
  Spread multiply_adds, prefetched_bytes, carried_bytes;
};
std::vector<StepsInSummary> steps_in_summary(annulus::RingPlan const& plan);

/// Prints what annulus::print_plan prints, with one line per run of equal steps and one per run of ranks with equal
/// totals; if there are more than 64 such runs of ranks, prints only the least and the most total.
void print_plan_summary(std::ostream& out, annulus::RingPlan const& plan);

}  // namespace annulus_command
