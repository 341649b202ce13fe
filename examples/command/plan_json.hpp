#pragma once
// JSON form of a ring plan.

#include <annulus/schedule/ring_plan.hpp>
#include <ostream>

namespace annulus_command {

/// Writes the content of print_plan as a JSON object, with counts as integers.
///
/// every_step: "summarized" is false and each rank has "steps", one for each step. Otherwise "summarized" is true and
/// the plan itself has "steps", one for each run of equal steps: "first" and "last" of them and, as "least"
/// and "most" of any rank, "multiply_adds", "prefetched_bytes" and "carried_bytes".
void write_json(std::ostream& out, annulus::RingPlan const& plan, bool every_step);

}  // namespace annulus_command
