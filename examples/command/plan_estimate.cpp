#include "plan_estimate.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <annulus/schedule/ring_plan.hpp>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "options.hpp"
#include "picture/svg.hpp"

namespace annulus_command {

namespace {

using annulus_picture::fixed;

/// Steps that are printed one by one.
constexpr int most_printed_steps = 16;

struct Candidate {
  annulus::RingPlan plan;
  annulus::PlanEstimate estimate;

  /// Time from the first rank's begin of a step to the last one's end.
  double seconds(int step) const {
    double begin = estimate.seconds, end = 0;
    for (annulus::Rank rank = 0; rank < plan.ranks(); ++rank) {
      begin = std::min(begin, estimate.step(rank, step).begin);
      end = std::max(end, estimate.step(rank, step).end);
    }
    return end - begin;
  }
};

std::vector<Candidate> candidates(RateOptions const& options, Call call, annulus::Pass pass, int ranks) {
  annulus::Rates const rates = options.all();
  std::vector<Candidate> all;
  // A group that is asked for belongs to the schedule that is asked for.
  annulus::Schedule const asked = call.options.schedule;
  int const asked_group = call.options.ranks_per_group;
  auto const add = [&](annulus::Schedule schedule, annulus::Rotation rotation, int group = 0) {
    call.options.schedule = schedule;
    call.options.ranks_per_group = schedule == asked && asked_group > 0 ? asked_group : group;
    call.options.rotation = rotation;
    annulus::RingPlan plan = plan_of(call, pass, ranks);
    annulus::PlanEstimate estimate = plan.estimate(rates);
    all.push_back({std::move(plan), std::move(estimate)});
  };
  call.options.rates.reset();
  add(annulus::Schedule::ring, annulus::Rotation::keys);
  add(annulus::Schedule::ring, annulus::Rotation::queries);
  if (call.options.reproducible || ranks == 1) return all;
  for (auto const schedule : {annulus::Schedule::both_directions, annulus::Schedule::two_levels,
                              annulus::Schedule::tiles, annulus::Schedule::all_gather})
    add(schedule, annulus::Rotation::automatic);
  if (annulus::detail::has_double_ring(ranks, rates))
    add(annulus::Schedule::double_ring, annulus::Rotation::automatic, rates.group);
  return all;
}

std::string milliseconds(double seconds) { return fixed(seconds * 1e3, 3); }

/// A number above 0 by which any work or bytes that are counted in 64 bits can be divided without overflow.
CLI::Validator rate() {
  auto const accepts = [](std::string const& text) {
    auto const value = finite_value(text);
    return value && *value >= 1e-6;
  };
  return accepting(accepts, "a number from 1e-6 on, such as 1e12");
}

CLI::Validator not_negative(double most, std::string const& accepted) {
  auto const accepts = [most](std::string const& text) {
    auto const value = finite_value(text);
    return value && *value >= 0 && *value <= most;
  };
  return accepting(accepts, accepted);
}

}  // namespace

void add_rates(CLI::App& app, RateOptions& options) {
  annulus::Rates& rates = options.rates;
  CLI::Option* const flops = app.add_option("--flops", options.flops,
                                            "floating-point operations per second of a rank; prints estimated times of "
                                            "both rotations and of all schedules")
                                 ->check(rate())
                                 ->type_name("X");
  auto const add = [&](char const* name, double& value, char const* description, CLI::Validator const& check) {
    return app.add_option(name, value, description)->check(check)->type_name("X")->needs(flops);
  };
  std::string const seconds = "seconds, 0 to 1000000";
  add("--bandwidth", rates.near.bandwidth, "bytes per second from a rank to another", rate())->default_str("unlimited");
  add("--latency", rates.near.latency, "seconds until the first byte of a message arrives", not_negative(1e6, seconds))
      ->default_str("0");
  add("--step-overhead", rates.step_overhead, "seconds of a step without any work", not_negative(1e6, seconds))
      ->default_str("0");
  add("--overlap", rates.overlap, "share of its work during which messages of a rank move",
      not_negative(1, "a number, 0 to 1"))
      ->default_str("1");
  CLI::Option* const group =
      app.add_option("--group", rates.group, "consecutive ranks that are near each other, such as those of a node")
          ->check(whole_number(1, most_ranks))
          ->type_name("N")
          ->default_str("all")
          ->needs(flops);
  add("--far-bandwidth", rates.far.bandwidth, "--bandwidth between groups", rate())
      ->default_str("unlimited")
      ->needs(group);
  add("--far-latency", rates.far.latency, "--latency between groups", not_negative(1e6, seconds))
      ->default_str("0")
      ->needs(group);
}

void print_estimates(std::ostream& out, RateOptions const& options, Call const& call, annulus::Pass pass, int ranks) {
  auto const all = candidates(options, call, pass, ranks);
  auto const print = [&](std::string const& title, auto&& value) {
    out << "  " << std::left << std::setw(28) << title << std::right;
    for (Candidate const& one : all) out << "  " << std::setw(14) << value(one);
    out << '\n';
  };
  out << "estimated times of the " << annulus::name_of(pass) << " pass\n";
  print("schedule", [](Candidate const& one) { return std::string(annulus::name_of(one.plan.request().schedule)); });
  print("ranks of a group", [](Candidate const& one) { return std::to_string(group_of(one.plan)); });
  print("travelling", [](Candidate const& one) {
    bool const gathers = one.plan.request().schedule == annulus::Schedule::all_gather;
    return std::string(gathers ? "none" : annulus::name_of(one.plan.rotation()));
  });
  print("ms", [](Candidate const& one) { return milliseconds(one.estimate.seconds); });
  print("exposed ms, mean of ranks", [](Candidate const& one) { return milliseconds(one.estimate.exposed()); });
  print("MiB sent by all ranks",
        [](Candidate const& one) { return fixed(static_cast<double>(one.plan.total_bytes_sent()) / (1 << 20), 3); });
  int steps = 0;
  for (Candidate const& one : all) steps = std::max(steps, one.plan.steps());
  for (int i = 0; i < std::min(steps, most_printed_steps); ++i)
    print("ms of step " + std::to_string(i),
          [&](Candidate const& one) { return i < one.plan.steps() ? milliseconds(one.seconds(i)) : "-"; });
  if (steps > most_printed_steps) out << "  steps after these are not listed; --json lists all\n";
}

nlohmann::json json_of_estimates(RateOptions const& options, Call const& call, annulus::Pass pass, int ranks) {
  nlohmann::json json = nlohmann::json::array();
  for (Candidate const& one : candidates(options, call, pass, ranks)) {
    std::vector<double> steps;
    for (int i = 0; i < one.plan.steps(); ++i) steps.push_back(one.seconds(i));
    json.push_back({{"schedule", std::string(annulus::name_of(one.plan.request().schedule))},
                    {"group", group_of(one.plan)},
                    {"rotation", std::string(annulus::name_of(one.plan.rotation()))},
                    {"seconds", one.estimate.seconds},
                    {"exposed_seconds", one.estimate.exposed()},
                    {"total_bytes_sent", one.plan.total_bytes_sent()},
                    {"step_seconds", steps}});
  }
  return json;
}

}  // namespace annulus_command
