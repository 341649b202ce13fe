#pragma once
// `annulus plan`: steps, bytes, memory and balance of a problem, without any data.

#include <annulus/attention/options.hpp>
#include <annulus/core/scalar.hpp>
#include <annulus/mask/mask.hpp>
#include <annulus/schedule/ring_plan.hpp>
#include <annulus/sharding/sharding.hpp>
#include <filesystem>
#include <optional>
#include <vector>

#include "plan_estimate.hpp"

namespace CLI {
class App;
}

namespace annulus_command {

/// The passes to plan; the word `both` sets both flags.
struct Passes {
  bool forward = true;
  bool backward = true;
};

/// Parsed options, with their defaults.
struct PlanOptions {
  std::optional<annulus::Index> tokens, queries, keys;
  int ranks = 4;
  annulus::Index batch = 1;
  annulus::Index heads = 1;
  std::optional<annulus::Index> kv_heads;  ///< unset: as many as heads
  annulus::Index head_dim = 64;
  std::optional<annulus::Index> value_dim;  ///< unset: head_dim
  annulus::DataType dtype = annulus::DataType::float32;
  std::vector<annulus::Index> documents;  ///< start positions; empty: not packed
  annulus::Sharding sharding{};
  std::optional<annulus::Index> block;  ///< block size of block-striped and balanced sharding
  annulus::Mask mask{};
  std::optional<annulus::Index> query_offset;
  annulus::Rotation rotation = annulus::Rotation::automatic;
  annulus::Schedule schedule = annulus::Schedule::ring;
  int group = 0;
  annulus::Wire wire = annulus::Wire::as_stored;
  bool reproducible = false;
  annulus::Index reproducible_leaf = annulus::Options{}.reproducible_leaf;
  Passes passes{};
  RateOptions rates{};
  bool json = false;
  std::optional<annulus::Rank> actions;             ///< of which rank the actions are listed; unset: of none
  bool every_step = false;                          ///< list all ranks and steps instead of a summary
  std::filesystem::path svg, svg_mask, svg_memory;  ///< pictures to write; empty: none
};

/// Adds the subcommand. Its options are parsed into `options`, which must live as long as `app`.
CLI::App& add_plan(CLI::App& app, PlanOptions& options);

/// Prints the plan and draws the pictures. Throws InputError or UnsupportedError for invalid or inconsistent options.
void run_plan(PlanOptions const& options);

}  // namespace annulus_command
