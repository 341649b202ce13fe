#pragma once

#include <annulus/schedule/ring_plan.hpp>
#include <nlohmann/json.hpp>

namespace annulus_command {

/// What print_plan prints, as an object: numbers are whole, bytes and rows are named as such.
nlohmann::json json_of(annulus::RingPlan const& plan);

}  // namespace annulus_command
