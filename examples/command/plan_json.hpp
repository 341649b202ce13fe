#pragma once

#include <annulus/schedule/ring_plan.hpp>
#include <ostream>

namespace annulus_command {

/// Writes what print_plan prints, as an object: numbers are whole, bytes and rows are named as such.
///
/// every_step: "summarized" is false and each rank has "steps", one for each step. Otherwise "summarized" is true and
/// the plan itself has "steps", one for each range of steps that look alike: "first" and "last" of them and, as "least"
/// and "most" of any rank, "multiply_adds", "prefetched_bytes" and "carried_bytes".
void write_json(std::ostream& out, annulus::RingPlan const& plan, bool every_step);

}  // namespace annulus_command
