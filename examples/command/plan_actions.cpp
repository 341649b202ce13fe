#include "plan_actions.hpp"

#include <annulus/schedule/pass_actions.hpp>
#include <annulus/schedule/print_actions.hpp>
#include <annulus/schedule/print_plan.hpp>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

namespace annulus_command {

void print_actions_of(std::ostream& out, annulus::RingPlan const& plan, annulus::Rank rank) {
  annulus::print_plan_heading(out, plan);
  annulus::print_actions(out, plan, rank);
}

nlohmann::json json_of_actions(annulus::RingPlan const& plan, annulus::Rank rank) {
  annulus::ActionList const list = annulus::actions_of(plan, rank);
  nlohmann::json slots = nlohmann::json::array(), actions = nlohmann::json::array();
  for (annulus::Slot const& slot : list.slots)
    slots.push_back({{"name", annulus::name_of(slot)},
                     {"rows", slot.rows},
                     {"bytes", slot.layout.buffer_bytes(slot.rows)},
                     {"partial_results", slot.nodes}});
  for (annulus::Action const& action : list.actions)
    actions.push_back({{"step", action.step < 0 ? nlohmann::json() : nlohmann::json(action.step)},
                       {"lane", action.lane},
                       {"name", std::string(annulus::name_of(action))},
                       {"words", annulus::describe(list, action)}});
  return {{"rank", rank}, {"slots", slots}, {"actions", actions}};
}

}  // namespace annulus_command
