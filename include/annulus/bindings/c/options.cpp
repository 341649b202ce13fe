#include "annulus/bindings/c/options.hpp"

#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/bindings/c/errors.hpp"

namespace annulus::bindings {

namespace {

std::vector<std::vector<Index>> map_of(int ranks, int64_t const* lengths, int64_t const* positions,
                                       std::string_view side) {
  require_given(lengths, detail::message_of("sharding: map_", side, "_lengths"));
  std::vector<std::vector<Index>> map;
  for (int rank = 0; rank < ranks; ++rank) {
    detail::check<UnsupportedError>(lengths[rank] >= 0, "sharding: the explicit map of ", side, " has ", lengths[rank],
                                    " positions on rank ", rank, "; accepted: 0 or more");
    if (lengths[rank] > 0) require_given(positions, detail::message_of("sharding: the positions of ", side));
    map.emplace_back(positions, positions + lengths[rank]);
    positions += lengths[rank];
  }
  return map;
}

Sharding explicit_map(annulus_sharding const& sharding) {
  detail::check<UnsupportedError>(sharding.map_ranks >= 1, "sharding: map_ranks is ", sharding.map_ranks,
                                  "; an explicit map needs 1 or more");
  ExplicitMap map{map_of(sharding.map_ranks, sharding.map_query_lengths, sharding.map_queries, "query"), {}};
  if (sharding.map_key_lengths)
    map.keys = map_of(sharding.map_ranks, sharding.map_key_lengths, sharding.map_keys, "key");
  return map;
}

Rotation rotation_of(annulus_rotation rotation) {
  switch (rotation) {
    case ANNULUS_ROTATION_AUTOMATIC:
      return Rotation::automatic;
    case ANNULUS_ROTATION_KEYS:
      return Rotation::keys;
    case ANNULUS_ROTATION_QUERIES:
      return Rotation::queries;
  }
  throw UnsupportedError(
      detail::message_of("rotation is ", static_cast<int>(rotation), "; accepted: 0 automatic, 1 keys, 2 queries"));
}

Schedule schedule_of(annulus_schedule schedule) {
  switch (schedule) {
    case ANNULUS_SCHEDULE_RING:
      return Schedule::ring;
    case ANNULUS_SCHEDULE_BOTH_DIRECTIONS:
      return Schedule::both_directions;
    case ANNULUS_SCHEDULE_TWO_LEVELS:
      return Schedule::two_levels;
    case ANNULUS_SCHEDULE_TILES:
      return Schedule::tiles;
    case ANNULUS_SCHEDULE_ALL_GATHER:
      return Schedule::all_gather;
    case ANNULUS_SCHEDULE_AUTOMATIC:
      return Schedule::automatic;
    case ANNULUS_SCHEDULE_DOUBLE_RING:
      return Schedule::double_ring;
  }
  throw UnsupportedError(detail::message_of("schedule is ", static_cast<int>(schedule),
                                            "; accepted: 0 ring, 1 both directions, 2 two levels, 3 tiles, "
                                            "4 all-gather, 5 automatic, 6 double ring"));
}

Wire wire_of(annulus_wire wire) {
  switch (wire) {
    case ANNULUS_WIRE_AS_STORED:
      return Wire::as_stored;
    case ANNULUS_WIRE_BFLOAT16:
      return Wire::bfloat16;
    case ANNULUS_WIRE_HALF:
      return Wire::half;
  }
  throw UnsupportedError(
      detail::message_of("wire is ", static_cast<int>(wire), "; accepted: 0 as stored, 1 bfloat16, 2 half"));
}

/// A rate; 0 stands for no limit.
double rate_of(double given) { return given == 0 ? std::numeric_limits<double>::infinity() : given; }

LinkRates link_of(annulus_link const& link) { return {.latency = link.latency, .bandwidth = rate_of(link.bandwidth)}; }

Rates rates_of(annulus_rates const& rates) {
  return {.flops = rate_of(rates.flops),
          .step_overhead = rates.step_overhead,
          .near = link_of(rates.near_link),
          .far = link_of(rates.far_link),
          .group = rates.group,
          .overlap = rates.overlap};
}

BlockMask block_mask_of(annulus_block_mask const& blocks) {
  if (!blocks.visible) {
    detail::check<UnsupportedError>(
        blocks.query_block == 0 && blocks.key_block == 0 && blocks.query_blocks == 0 && blocks.key_blocks == 0,
        "blocks: extents are given, but visible is NULL; accepted: both or neither");
    return {};
  }
  detail::check<ShapeError>(blocks.query_blocks >= 1 && blocks.key_blocks >= 1, "blocks: ", blocks.query_blocks, " x ",
                            blocks.key_blocks, " blocks; accepted: 1 or more of each");
  Index const count =
      detail::saturating_product(static_cast<Index>(blocks.query_blocks), static_cast<Index>(blocks.key_blocks));
  std::vector<bool> visible(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < visible.size(); ++i) visible[i] = blocks.visible[i] != 0;
  return {static_cast<Index>(blocks.query_block), static_cast<Index>(blocks.key_block),
          static_cast<Index>(blocks.key_blocks), std::move(visible)};
}

}  // namespace

bool flag_of(int flag, char const* name) {
  detail::check<UnsupportedError>(flag == 0 || flag == 1, name, " is ", flag, "; accepted: 0 and 1");
  return flag == 1;
}

Sharding sharding_of(annulus_sharding const& sharding) {
  bool const mapped = sharding.map_ranks || sharding.map_query_lengths || sharding.map_queries ||
                      sharding.map_key_lengths || sharding.map_keys;
  detail::check<UnsupportedError>(sharding.kind == ANNULUS_EXPLICIT_MAP || !mapped,
                                  "sharding: an explicit map is given, but kind is ", static_cast<int>(sharding.kind),
                                  "; accepted with a map: ANNULUS_EXPLICIT_MAP");
  detail::check<UnsupportedError>(sharding.kind == ANNULUS_STRIPED || sharding.block == 1 || sharding.block == 0,
                                  "sharding: block is ", sharding.block, ", but kind is ",
                                  static_cast<int>(sharding.kind), "; accepted with blocks: ANNULUS_STRIPED");
  switch (sharding.kind) {
    case ANNULUS_CONTIGUOUS:
      return Contiguous{};
    case ANNULUS_STRIPED:
      return Striped{.block = static_cast<Index>(sharding.block)};
    case ANNULUS_ZIGZAG:
      return Zigzag{};
    case ANNULUS_EXPLICIT_MAP:
      return explicit_map(sharding);
  }
  throw UnsupportedError(detail::message_of("sharding: kind is ", static_cast<int>(sharding.kind),
                                            "; accepted: 0 contiguous, 1 striped, 2 zigzag, 3 explicit map"));
}

Options options_of(annulus_options const* given) {
  annulus_options const options = given ? *given : annulus_default_options();
  Options result{.mask = {.causal = flag_of(options.causal, "causal"),
                          .window = {.left = static_cast<Index>(options.window_left),
                                     .right = static_cast<Index>(options.window_right)},
                          .sink_tokens = static_cast<Index>(options.sink_tokens),
                          .chunk = static_cast<Index>(options.chunk)},
                 .block_mask = block_mask_of(options.blocks),
                 .logit_softcap = options.logit_softcap,
                 .dropout = {.probability = options.dropout_probability, .seed = options.dropout_seed},
                 .sharding = sharding_of(options.sharding),
                 .reproducible = flag_of(options.reproducible, "reproducible"),
                 .reproducible_leaf = static_cast<Index>(options.reproducible_leaf),
                 .rotation = rotation_of(options.rotation),
                 .schedule = schedule_of(options.schedule),
                 .ranks_per_group = options.ranks_per_group,
                 .wire = wire_of(options.wire),
                 .require_finite = flag_of(options.require_finite, "require_finite")};
  if (flag_of(options.has_softmax_scale, "has_softmax_scale")) result.softmax_scale = options.softmax_scale;
  if (flag_of(options.has_query_offset, "has_query_offset"))
    result.query_offset = static_cast<Index>(options.query_offset);
  if (flag_of(options.has_rates, "has_rates")) result.rates = rates_of(options.rates);
  if (options.checked != -1) result.checked = flag_of(options.checked, "checked");
  return result;
}

}  // namespace annulus::bindings

annulus_options annulus_default_options(void) {
  annulus_options options{};
  options.window_left = options.window_right = -1;
  options.sharding.block = 1;
  options.reproducible_leaf = annulus::Options{}.reproducible_leaf;
  options.checked = -1;
  options.rates.overlap = annulus::Rates{}.overlap;
  return options;
}
