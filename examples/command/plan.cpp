#include "plan.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <annulus/attention/validate.hpp>
#include <annulus/schedule/print_plan.hpp>
#include <annulus/schedule/ring_plan.hpp>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "call.hpp"
#include "errors.hpp"
#include "options.hpp"
#include "output_folder.hpp"
#include "packed_documents.hpp"
#include "picture/svg.hpp"
#include "plan_actions.hpp"
#include "plan_picture.hpp"
#include "plan_summary.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::Pass;
using annulus::Rank;
using annulus::RingPlan;

/// Largest accepted extent; require_countable checks the product.
constexpr Index most_extent = Index{1} << 30;
constexpr Index most_blocks = Index{1} << 20;
constexpr double most_work = 4e18;

/// The JSON of plans with more steps than this, summed over all ranks, is a summary unless every step is asked for.
constexpr Index most_listed_steps = 1024;

/// Above this ratio of the largest work of a rank to the mean, other shardings are compared.
constexpr double balanced = 1.1;

/// Up to this number of ranks, a balanced sharding is compared too; making its plan takes seconds beyond.
constexpr int most_balanced_ranks = 64;

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

/// Throws InputError if 64 bits cannot count the work of a rank.
void require_countable(annulus::AttentionShape const& shape, Index queries, Index keys, int ranks) {
  double const heads = static_cast<double>(shape.batch) * static_cast<double>(shape.query_heads);
  double const dims = 3.0 * static_cast<double>(shape.head_dim) + 2.0 * static_cast<double>(shape.value_dim);
  double const work = heads * dims * std::ceil(static_cast<double>(queries) / ranks) * static_cast<double>(keys);
  if (work > most_work)
    throw InputError(annulus::detail::message_of("a rank has up to ", work, " multiply-adds; accepted: up to ",
                                                 most_work, ", which 64 bits can count"));
}

/// The call to plan; the plans of both passes are made from it.
Call call_of(PlanOptions const& options) {
  if (!options.tokens && !(options.queries && options.keys))
    throw InputError("no sequence length is given; accepted: --tokens, or --queries and --keys");
  Index const queries = options.tokens ? *options.tokens : *options.queries;
  Index const keys = options.tokens ? *options.tokens : *options.keys;
  annulus::AttentionShape const shape = shape_of(options);
  require_countable(shape, queries, keys, options.ranks);
  require_documents(options.documents, queries, keys);
  require_block(options.sharding, options.block);
  bool const takes_near = options.schedule == annulus::Schedule::double_ring && options.group == 0;
  int const group = takes_near ? options.rates.rates.group : options.group;
  require_group(options.schedule, group);
  if (options.block && std::max(queries, keys) / *options.block > most_blocks)
    throw InputError("--block " + std::to_string(*options.block) + " makes " +
                     std::to_string(std::max(queries, keys) / *options.block) + " blocks; accepted: up to " +
                     std::to_string(most_blocks));
  Call call{.shape = {.dtype = options.dtype,
                      .attention = shape,
                      .queries = queries,
                      .keys = keys,
                      .document_ids = !options.documents.empty()},
            .options = {.mask = options.mask,
                        .query_offset = options.query_offset,
                        .reproducible = options.reproducible,
                        .reproducible_leaf = options.reproducible_leaf,
                        .rotation = options.rotation,
                        .schedule = options.schedule,
                        .ranks_per_group = group,
                        .wire = options.wire},
            .documents = documents_from(options.documents, keys)};
  if (options.schedule == annulus::Schedule::automatic && options.rates.given())
    call.options.rates = options.rates.all();
  call.options.query_offset = annulus::query_offset_of(annulus::rules_of(call.options), queries, keys);
  call.options.sharding =
      sharding_of(options.sharding, options.block, {queries, keys, options.ranks, options.mask, call.documents});
  return call;
}

nlohmann::json json_of_step(RingPlan const& plan, Rank rank, int i) {
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

nlohmann::json json_of_rank(RingPlan const& plan, Rank rank, bool every_step) {
  nlohmann::json json{{"queries", plan.local_queries(rank)},
                      {"keys", plan.local_keys(rank)},
                      {"multiply_adds", plan.multiply_adds(rank)},
                      {"bytes_sent", plan.bytes_sent(rank)},
                      {"operand_bytes", plan.operand_bytes(rank)},
                      {"result_bytes", plan.result_bytes(rank)},
                      {"peak_buffer_bytes", plan.peak_buffer_bytes(rank)}};
  if (!every_step) return json;
  json["steps"] = nlohmann::json::array();
  for (int i = 0; i < plan.steps(); ++i) json["steps"].push_back(json_of_step(plan, rank, i));
  return json;
}

nlohmann::json json_of_summary(RingPlan const& plan) {
  auto const json_of = [](Spread const& spread) {
    return nlohmann::json{{"least", spread.least}, {"most", spread.most}};
  };
  nlohmann::json all = nlohmann::json::array();
  for (EqualSteps const& steps : summary_of_steps(plan))
    all.push_back({{"first", steps.first},
                   {"last", steps.last},
                   {"multiply_adds", json_of(steps.multiply_adds)},
                   {"prefetched_bytes", json_of(steps.prefetched_bytes)},
                   {"carried_bytes", json_of(steps.carried_bytes)}});
  return all;
}

/// Writes the content of print_plan as a JSON object, with counts as integers.
///
/// every_step: "summarized" is false and each rank has "steps", one for each step. Otherwise "summarized" is true and
/// the plan itself has "steps", one for each run of equal steps: "first" and "last" of them and, as "least"
/// and "most" of any rank, "multiply_adds", "prefetched_bytes" and "carried_bytes".
///
/// In both directions "bytes_sent_each_way" has the bytes forwards and backwards, and "owner" and "tiles" of a step are
/// those of the rows that travel forwards.
///
/// estimates: of json_of_estimates; null without rates. actions: of json_of_actions; null if they are not asked for.
void write_json(std::ostream& out, RingPlan const& plan, bool every_step, nlohmann::json const& estimates,
                nlohmann::json const& actions) {
  nlohmann::json whole{{"pass", plan.request().pass == Pass::forward ? "forward" : "backward"},
                       {"sharding", plan.request().sharding.name()},
                       {"rotation", std::string(annulus::name_of(plan.rotation()))},
                       {"schedule", std::string(annulus::name_of(plan.request().schedule))},
                       {"group", group_of(plan)},
                       {"bytes_in_groups", annulus::bytes_in_groups(plan)},
                       {"wire", std::string(annulus::name_of(plan.request().wire))},
                       {"reproducible", plan.request().rules.reproducible},
                       {"summarized", !every_step},
                       {"offsets_without_step", annulus::offsets_without_step(plan)},
                       {"total_bytes_sent", plan.total_bytes_sent()},
                       {"imbalance", plan.imbalance()}};
  if (plan.lanes().size() > 1)
    whole["bytes_sent_each_way"] = {plan.lanes()[0].total_bytes_sent(), plan.lanes()[1].total_bytes_sent()};
  if (!every_step) whole["steps"] = json_of_summary(plan);
  if (!estimates.is_null()) whole["estimates"] = estimates;
  if (!actions.is_null()) whole["actions"] = actions;
  // Written rank by rank, because the steps of many ranks together would take gigabytes.
  out << "{\n \"ranks\": [";
  for (Rank rank = 0; rank < plan.ranks(); ++rank)
    out << (rank == 0 ? "\n" : ",\n") << json_of_rank(plan, rank, every_step).dump(1);
  out << "\n ]," << whole.dump(1).substr(1);
}

void print_columns() {
  std::cout
      << "\ncolumns\n"
         "  owner                           rank whose rows this rank works on in the step\n"
         "  full, band, ranges, elements    tiles by coverage: all pairs visible; a diagonal band; a range of keys "
         "per query;\n"
         "                                  a test per pair\n"
         "  multiply-adds                   work of the visible pairs\n"
         "  rows ahead, bytes ahead         sent before the compute of the step: operands of the next step\n"
         "  rows behind, bytes behind       sent after it: results for their owner\n"
         "  peak buffer bytes               all buffers that the pass allocates on the rank\n"
         "  bytes needed                    operands, results and buffers\n";
}

/// Says which sharding balances the work of the ranks, if the chosen one does not; else empty.
std::string balance_advice(Call call, RingPlan const& plan) {
  if (plan.imbalance() <= balanced) return {};
  // The work of a rank does not depend on the leaves, which need not fit the other shardings.
  call.options.reproducible = false;
  std::string better;
  double smallest = plan.imbalance();
  Choices<annulus::Sharding> others = shardings;
  Index const queries = call.shape.queries, keys = call.shape.keys;
  if (queries == keys && plan.ranks() <= most_balanced_ranks)
    others.emplace_back("balanced", sharding_of(detail::balanced, {},
                                                {queries, keys, plan.ranks(), call.options.mask, call.documents}));
  for (auto const& [word, sharding] : others) {
    call.options.sharding = sharding;
    double const imbalance = plan_of(call, plan.request().pass, plan.ranks()).imbalance();
    if (imbalance >= smallest) continue;
    smallest = imbalance;
    better = "--sharding " + word + " would be " + annulus_picture::fixed(imbalance, 2);
  }
  return "the busiest rank has " + annulus_picture::fixed(plan.imbalance(), 2) +
         " times the mean work: " + (better.empty() ? "no other sharding is better balanced" : better);
}

/// Prints the tables of all ranks and steps, or the summary.
void print_text(std::ostream& out, RingPlan const& plan, std::string const& advice, bool every_step) {
  if (!every_step) return print_plan_summary(out, plan, advice);
  annulus::print_plan(out, plan);
  if (!advice.empty()) out << advice << '\n';
}

/// Adds --actions, whose rank may be left out.
void add_actions(CLI::App& plan, std::optional<Rank>& actions) {
  auto const is_rank = [](std::string const& text) {
    Rank rank = 0;
    return text.empty() || (is_whole_number(text, rank) && rank >= 0 && rank < most_ranks);
  };
  auto const take = [&actions](std::string const& text) {
    Rank rank = 0;
    is_whole_number(text, rank);
    actions = rank;
  };
  plan.add_option_function<std::string>("--actions", take,
                                        "list what a rank does instead of the tables; by default rank 0")
      ->check(accepting(is_rank, "a rank, or nothing for rank 0"))
      ->expected(0, 1)
      ->type_name("[RANK]");
}

/// Throws InputError if the ring has no such rank.
void require_rank(PlanOptions const& options) {
  if (options.actions && *options.actions >= options.ranks)
    throw InputError("--actions " + std::to_string(*options.actions) + " with --ranks " +
                     std::to_string(options.ranks) + "; accepted: a rank from 0 to " +
                     std::to_string(options.ranks - 1));
}

/// Name of a file and what it will hold.
using Picture = std::pair<std::filesystem::path, std::string>;

/// Writes the pictures. Throws InputError, before any is written, if two have one name.
void write_pictures(std::vector<Picture> const& pictures) {
  for (std::size_t i = 1; i < pictures.size(); ++i)
    for (std::size_t earlier = 0; earlier < i; ++earlier)
      if (name_one_file(pictures[i].first, pictures[earlier].first))
        throw InputError(pictures[i].first.string() +
                         ": two pictures of this call have that name; accepted: names that differ");
  for (auto const& [file, picture] : pictures)
    write_file(file, {}, [&content = picture](std::ostream& stream) { stream << content; });
}

}  // namespace

CLI::App& add_plan(CLI::App& app, PlanOptions& options) {
  CLI::App& plan =
      *app.add_subcommand("plan", "steps, bytes, memory and balance of a call of ring attention, without data");
  CLI::Option* const tokens = add_extent(plan, "--tokens", options.tokens, most_extent, "queries and keys");
  add_extent(plan, "--queries", options.queries, most_extent, "queries, if not as many as keys")->excludes(tokens);
  add_extent(plan, "--keys", options.keys, most_extent, "keys")->excludes(tokens);
  add_ranks(plan, options.ranks, "ranks of the ring")->capture_default_str();
  add_extent(plan, "--batch", options.batch, most_extent, "batch")->capture_default_str();
  add_extent(plan, "--heads", options.heads, most_extent, "query heads")->capture_default_str();
  add_extent(plan, "--kv-heads", options.kv_heads, most_extent, "key and value heads")
      ->default_str("as many as --heads");
  add_extent(plan, "--head-dim", options.head_dim, most_extent, "dim of q and k")->capture_default_str();
  add_extent(plan, "--value-dim", options.value_dim, most_extent, "dim of v")->default_str("that of --head-dim");
  add_choice(plan, "--dtype", options.dtype, data_types, "element type")->default_str("float32");
  add_documents(plan, options.documents);
  add_sharding(plan, options.sharding, options.block);
  add_mask_options(plan, options.mask, options.query_offset);
  add_rotation(plan, options.rotation);
  add_schedule(plan, options.schedule, options.group);
  add_wire(plan, options.wire);
  add_reproducible(plan, options.reproducible, options.reproducible_leaf);
  add_choice(plan, "--pass", options.passes,
             Choices<Passes>{{"forward", {true, false}}, {"backward", {false, true}}, {"both", {true, true}}},
             "passes to plan")
      ->default_str("both");
  add_rates(plan, options.rates);
  add_switch(plan, "--json", options.json, "print JSON, an array of one object for each pass");
  add_actions(plan, options.actions);
  add_switch(plan, "--every-step", options.every_step,
             "list every step of every rank; JSON does so for up to " + std::to_string(most_listed_steps) +
                 " steps in total, and else has \"summarized\": true");
  add_file(plan, "--svg", options.svg, "draw the work of each rank in each step as an SVG picture");
  add_file(plan, "--svg-mask", options.svg_mask,
           "draw which keys each query sees, and the ranks that own them, as an SVG picture");
  add_file(plan, "--svg-memory", options.svg_memory,
           "draw the memory of a rank against the number of tokens as an SVG picture")
      ->excludes("--reproducible");
  return plan;
}

void run_plan(PlanOptions const& options) {
  annulus::validate_rules({.mask = options.mask, .query_offset = options.query_offset});
  require_rank(options);
  Call const call = call_of(options);
  if (!options.svg_memory.empty() && (options.sharding == detail::balanced || !options.documents.empty()))
    throw InputError(
        "--svg-memory draws sequences of several lengths; accepted: without --sharding balanced and --documents");
  std::vector<RingPlan> plans;
  if (options.passes.forward) plans.push_back(plan_of(call, Pass::forward, options.ranks));
  if (options.passes.backward) plans.push_back(plan_of(call, Pass::backward, options.ranks));
  // All are drawn before the first is written, as each can be refused.
  std::vector<Picture> pictures;
  auto const add_picture = [&](std::filesystem::path const& file, auto&& draw) {
    if (file.empty()) return;
    std::ostringstream picture;
    draw(picture);
    pictures.emplace_back(file, picture.str());
  };
  add_picture(options.svg, [&](std::ostream& stream) { draw_balance(stream, plans); });
  add_picture(options.svg_mask, [&](std::ostream& stream) { draw_mask(stream, plans.front()); });
  add_picture(options.svg_memory, [&](std::ostream& stream) {
    draw_memory(stream, call, options.passes.backward ? Pass::backward : Pass::forward, options.ranks);
  });
  write_pictures(pictures);
  auto const lists_steps = [&](RingPlan const& plan) {
    return options.every_step || Index{plan.ranks()} * plan.steps() <= most_listed_steps;
  };
  if (options.json) {
    std::cout << '[';
    for (std::size_t i = 0; i < plans.size(); ++i) {
      std::cout << (i == 0 ? "\n" : ",\n");
      nlohmann::json const estimates =
          options.rates.given() ? json_of_estimates(options.rates, call, plans[i].request().pass, options.ranks)
                                : nlohmann::json();
      write_json(std::cout, plans[i], lists_steps(plans[i]), estimates,
                 options.actions ? json_of_actions(plans[i], *options.actions) : nlohmann::json());
    }
    std::cout << "\n]\n";
    return;
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (i > 0) std::cout << '\n';
    if (options.actions) {
      print_actions_of(std::cout, plans[i], *options.actions);
      continue;
    }
    print_text(std::cout, plans[i], balance_advice(call, plans[i]), options.every_step);
    if (options.rates.given()) print_estimates(std::cout, options.rates, call, plans[i].request().pass, options.ranks);
  }
  if (options.every_step && !options.actions) print_columns();
}

}  // namespace annulus_command
