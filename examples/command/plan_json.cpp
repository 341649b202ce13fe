#include "plan_json.hpp"

#include <annulus/schedule/print_plan.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "plan_summary.hpp"

namespace annulus_command {

namespace {

nlohmann::json json_of_step(annulus::RingPlan const& plan, annulus::Rank rank, int i) {
  annulus::PlannedStep const& step = plan.step(rank, i);
  annulus::TileCounts const tiles = annulus::count_tiles(plan, rank, i);
  return {
      {"owner", step.owner},
      {"tiles", {{"full", tiles.full}, {"band", tiles.band}, {"ranges", tiles.ranges}, {"elements", tiles.elements}}},
      {"visible_pairs", step.visible_pairs},
      {"multiply_adds", step.multiply_adds},
      {"prefetched_rows", step.sent.size()},
      {"prefetched_bytes", step.prefetched_bytes},
      {"carried_rows", annulus::carried_rows_sent(plan, rank, i)},
      {"carried_bytes", step.carried_bytes}};
}

nlohmann::json json_of_rank(annulus::RingPlan const& plan, annulus::Rank rank, bool every_step) {
  nlohmann::json json{{"queries", plan.local_queries(rank)},
                      {"keys", plan.local_keys(rank)},
                      {"multiply_adds", plan.multiply_adds(rank)},
                      {"bytes_sent", plan.bytes_sent(rank)},
                      {"peak_buffer_bytes", plan.peak_buffer_bytes(rank)}};
  if (!every_step) return json;
  json["steps"] = nlohmann::json::array();
  for (int i = 0; i < plan.steps(); ++i) json["steps"].push_back(json_of_step(plan, rank, i));
  return json;
}

nlohmann::json json_of_summary(annulus::RingPlan const& plan) {
  auto const json_of = [](Spread const& spread) {
    return nlohmann::json{{"least", spread.least}, {"most", spread.most}};
  };
  nlohmann::json all = nlohmann::json::array();
  for (StepsInSummary const& steps : steps_in_summary(plan))
    all.push_back({{"first", steps.first},
                   {"last", steps.last},
                   {"multiply_adds", json_of(steps.multiply_adds)},
                   {"prefetched_bytes", json_of(steps.prefetched_bytes)},
                   {"carried_bytes", json_of(steps.carried_bytes)}});
  return all;
}

}  // namespace

void write_json(std::ostream& out, annulus::RingPlan const& plan, bool every_step) {
  nlohmann::json whole{{"pass", plan.request().pass == annulus::Pass::forward ? "forward" : "backward"},
                       {"sharding", plan.request().sharding.name()},
                       {"rotation", std::string(annulus::name_of(plan.rotation()))},
                       {"summarized", !every_step},
                       {"offsets_without_step", annulus::offsets_without_step(plan)},
                       {"total_bytes_sent", plan.total_bytes_sent()},
                       {"imbalance", plan.imbalance()}};
  if (!every_step) whole["steps"] = json_of_summary(plan);
  // Written rank by rank, because the steps of many ranks together would take gigabytes.
  out << "{\n \"ranks\": [";
  for (annulus::Rank rank = 0; rank < plan.ranks(); ++rank)
    out << (rank == 0 ? "\n" : ",\n") << json_of_rank(plan, rank, every_step).dump(1);
  out << "\n ]," << whole.dump(1).substr(1);
}

}  // namespace annulus_command
