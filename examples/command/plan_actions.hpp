#pragma once
// The list of actions of a rank in `annulus plan`, as text and as JSON.

#include <annulus/schedule/ring_plan.hpp>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>

namespace annulus_command {

/// Prints the problem, then the slots and the actions of the rank.
void print_actions_of(std::ostream& out, annulus::RingPlan const& plan, annulus::Rank rank);

/// "rank", "slots" with "name", "rows", "bytes" and "partial_results", and "actions" with "step" (null: before the steps,
/// or in the group), "lane", "name" and "words".
nlohmann::json json_of_actions(annulus::RingPlan const& plan, annulus::Rank rank);

}  // namespace annulus_command
