#include "plan.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <annulus/attention/validate.hpp>
#include <annulus/schedule/print_plan.hpp>
#include <cmath>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "choice_option.hpp"
#include "input_error.hpp"
#include "number_check.hpp"
#include "plan_json.hpp"
#include "plan_summary.hpp"
#include "ring_options.hpp"

namespace annulus_command {

namespace {

/// Largest accepted extent; require_countable checks the product.
constexpr annulus::Index most_extent = annulus::Index{1} << 30;
constexpr annulus::Index most_blocks = annulus::Index{1} << 20;
constexpr double most_work = 4e18;

template <class Value>
CLI::Option* add_extent(CLI::App& app, char const* name, Value& value, char const* description) {
  return app.add_option(name, value, description)->check(whole_number(annulus::Index{1}, most_extent))->type_name("N");
}

annulus::AttentionShape shape_of(PlanOptions const& options) {
  annulus::AttentionShape const shape{.batch = options.batch,
                                      .query_heads = options.heads,
                                      .kv_heads = options.kv_heads.value_or(options.heads),
                                      .head_dim = options.head_dim,
                                      .value_dim = options.value_dim.value_or(options.head_dim)};
  if (shape.query_heads % shape.kv_heads != 0)
    throw InputError("--heads " + std::to_string(shape.query_heads) + " --kv-heads " + std::to_string(shape.kv_heads) +
                     "; accepted: a number of kv heads that divides the number of heads");
  return shape;
}

/// Throws InputError if 64 bits cannot count the work or the bytes.
void require_countable(annulus::AttentionShape const& shape, annulus::Index queries, annulus::Index keys) {
  double const heads = static_cast<double>(shape.batch) * static_cast<double>(shape.query_heads);
  double const dims = 3.0 * static_cast<double>(shape.head_dim) + 2.0 * static_cast<double>(shape.value_dim);
  double const work = heads * dims * static_cast<double>(queries) * static_cast<double>(keys);
  if (work > most_work)
    throw InputError(annulus::message_of("the problem has ", work, " multiply-adds; accepted: up to ", most_work,
                                         ", which 64 bits can count"));
}

annulus::PlanRequest request_of(PlanOptions const& options) {
  if (!options.tokens && !(options.queries && options.keys))
    throw InputError("no sequence length is given; accepted: --tokens, or --queries and --keys");
  annulus::Index const queries = options.tokens ? *options.tokens : *options.queries;
  annulus::Index const keys = options.tokens ? *options.tokens : *options.keys;
  annulus::AttentionShape const shape = shape_of(options);
  require_countable(shape, queries, keys);
  annulus::Sharding const sharding = sharding_of(options.sharding, options.block);
  if (options.block && std::max(queries, keys) / *options.block > most_blocks)
    throw InputError("--block " + std::to_string(*options.block) + " makes " +
                     std::to_string(std::max(queries, keys) / *options.block) + " blocks; accepted: up to " +
                     std::to_string(most_blocks));
  int const accumulator_bytes = options.dtype == annulus::DataType::float64 ? 8 : 4;
  return {.shape = shape,
          .query_lengths = sharding.lengths(annulus::Side::query, options.ranks, queries),
          .key_lengths = sharding.lengths(annulus::Side::key, options.ranks, keys),
          .sharding = sharding,
          .mask = options.mask,
          .query_offset = options.query_offset,
          .rotation = options.rotation,
          .element_bytes = annulus::size_of(options.dtype),
          .accumulator_bytes = accumulator_bytes,
          .lse_bytes = accumulator_bytes};
}

/// Above this ratio of the largest work of a rank to the mean, other shardings are compared.
constexpr double balanced = 1.1;

void print_columns() {
  std::cout << "\ncolumns\n"
               "  owner                           rank whose rows this rank works on in the step\n"
               "  full, band, ranges, elements    tiles by coverage: all pairs visible; a diagonal band; a range of keys "
               "per query;\n"
               "                                  a test per pair\n"
               "  multiply-adds                   work of the visible pairs\n"
               "  rows ahead, bytes ahead         sent before the compute of the step: operands of the next step\n"
               "  rows behind, bytes behind       sent after it: results for their owner\n"
               "  peak buffer bytes               all buffers that the pass allocates on the rank\n";
}

/// Says which shardings balance the work of the ranks, if the chosen one does not.
void print_balance(annulus::RingPlan const& plan) {
  if (plan.imbalance() <= balanced) return;
  std::string better;
  double smallest = plan.imbalance();
  for (auto const& [word, sharding] : shardings) {
    annulus::PlanRequest other = plan.request();
    other.sharding = sharding;
    other.query_lengths = sharding.lengths(annulus::Side::query, plan.ranks(), plan.global_queries());
    other.key_lengths = sharding.lengths(annulus::Side::key, plan.ranks(), plan.global_keys());
    double const imbalance = annulus::RingPlan(other).imbalance();
    if (imbalance >= smallest) continue;
    smallest = imbalance;
    better = annulus::message_of("--sharding ", word, " has ", std::round(100 * imbalance) / 100);
  }
  std::cout << "the busiest rank has " << std::round(100 * plan.imbalance()) / 100 << " times the mean work: "
            << (better.empty() ? "no other sharding is better balanced" : better) << '\n';
}

}  // namespace

CLI::App& add_plan(CLI::App& app, PlanOptions& options) {
  CLI::App& plan =
      *app.add_subcommand("plan", "steps, bytes, memory and balance of a call of ring attention, without data");
  CLI::Option* const tokens = add_extent(plan, "--tokens", options.tokens, "queries and keys");
  add_extent(plan, "--queries", options.queries, "queries, if not as many as keys")->excludes(tokens);
  add_extent(plan, "--keys", options.keys, "keys")->excludes(tokens);
  add_ranks(plan, options.ranks, "ranks of the ring")->capture_default_str();
  add_extent(plan, "--batch", options.batch, "batch")->capture_default_str();
  add_extent(plan, "--heads", options.heads, "query heads")->capture_default_str();
  add_extent(plan, "--kv-heads", options.kv_heads, "key and value heads")->default_str("as many as --heads");
  add_extent(plan, "--head-dim", options.head_dim, "dim of q and k")->capture_default_str();
  add_extent(plan, "--value-dim", options.value_dim, "dim of v")->default_str("that of --head-dim");
  add_choice(plan, "--dtype", options.dtype, data_types, "element type")->default_str("f32");
  add_sharding(plan, options.sharding, options.block);
  add_mask_options(plan, options.mask, options.query_offset);
  add_rotation(plan, options.rotation);
  add_choice(plan, "--pass", options.passes,
             Choices<Passes>{{"forward", {true, false}}, {"backward", {false, true}}, {"both", {true, true}}},
             "passes to plan")
      ->default_str("both");
  add_switch(plan, "--json", options.json, "print JSON, an array of one object for each pass");
  add_switch(plan, "--every-step", options.every_step,
             "list every step of every rank; by default more than " + std::to_string(most_listed_steps) +
                 " steps in total are summarised, in JSON with \"summarized\": true");
  return plan;
}

void run_plan(PlanOptions const& options) {
  annulus::validate_options({.mask = options.mask, .query_offset = options.query_offset, .rotation = options.rotation});
  annulus::PlanRequest request = request_of(options);
  std::vector<annulus::RingPlan> plans;
  for (annulus::Pass pass : {annulus::Pass::forward, annulus::Pass::backward}) {
    if (!(pass == annulus::Pass::forward ? options.passes.forward : options.passes.backward)) continue;
    request.pass = pass;
    plans.emplace_back(request);
  }
  auto const lists_steps = [&](annulus::RingPlan const& plan) {
    return options.every_step || annulus::Index{plan.ranks()} * plan.steps() <= most_listed_steps;
  };
  if (options.json) {
    std::cout << '[';
    for (std::size_t i = 0; i < plans.size(); ++i) {
      std::cout << (i == 0 ? "\n" : ",\n");
      write_json(std::cout, plans[i], lists_steps(plans[i]));
    }
    std::cout << "\n]\n";
    return;
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (i > 0) std::cout << '\n';
    if (lists_steps(plans[i]))
      print_plan(std::cout, plans[i]);
    else
      print_plan_summary(std::cout, plans[i]);
    print_balance(plans[i]);
  }
  print_columns();
}

}  // namespace annulus_command
