#pragma once
// Estimated times of plans in `annulus plan`, for both rotations and all schedules.

#include <annulus/schedule/estimate.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ostream>

#include "call.hpp"

namespace CLI {
class App;
}

namespace annulus_command {

/// Rates of the command line; an estimate is made where --flops is given.
struct RateOptions {
  std::optional<double> flops;
  annulus::Rates rates{};

  bool given() const { return flops.has_value(); }
  annulus::Rates all() const {
    annulus::Rates rates_and_flops = rates;
    rates_and_flops.flops = *flops;
    return rates_and_flops;
  }
};

/// Ranks of a group, which exchange rows or form an inner ring; 1: the schedule of the plan has no groups.
inline int group_of(annulus::RingPlan const& plan) {
  return plan.request().schedule == annulus::Schedule::double_ring ? plan.request().ranks_per_group
                                                                   : plan.groups().size();
}

/// Adds --flops, --bandwidth, --latency and those that need them.
void add_rates(CLI::App& app, RateOptions& options);

/// Prints the estimated times of a pass side by side: the ring with both rotations, and the other schedules.
void print_estimates(std::ostream& out, RateOptions const& options, Call const& call, annulus::Pass pass, int ranks);

/// The same as JSON: an object for each.
nlohmann::json json_of_estimates(RateOptions const& options, Call const& call, annulus::Pass pass, int ranks);

}  // namespace annulus_command
