#include "plan_json.hpp"

#include <annulus/schedule/print_plan.hpp>
#include <string>

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

}  // namespace

nlohmann::json json_of(annulus::RingPlan const& plan) {
  nlohmann::json ranks = nlohmann::json::array();
  for (annulus::Rank rank = 0; rank < plan.ranks(); ++rank) {
    nlohmann::json steps = nlohmann::json::array();
    for (int i = 0; i < plan.steps(); ++i) steps.push_back(json_of_step(plan, rank, i));
    ranks.push_back({{"queries", plan.local_queries(rank)},
                     {"keys", plan.local_keys(rank)},
                     {"steps", std::move(steps)},
                     {"multiply_adds", plan.multiply_adds(rank)},
                     {"bytes_sent", plan.bytes_sent(rank)},
                     {"peak_buffer_bytes", plan.peak_buffer_bytes(rank)}});
  }
  return {{"pass", plan.request().pass == annulus::Pass::forward ? "forward" : "backward"},
          {"sharding", plan.request().sharding.name()},
          {"rotation", std::string(annulus::name_of(plan.rotation()))},
          {"ranks", std::move(ranks)},
          {"offsets_without_step", annulus::offsets_without_step(plan)},
          {"total_bytes_sent", plan.total_bytes_sent()},
          {"imbalance", plan.imbalance()}};
}

}  // namespace annulus_command
