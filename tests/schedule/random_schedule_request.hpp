#pragma once
// Random plan requests over schedule x operands, on top of those over sharding x mask, with up to 64 ranks.

#include <algorithm>
#include <numeric>
#include <vector>

#include "schedule/random_plan_request.hpp"

namespace annulus_test {

/// The same number of rows in blocks of a few positions, which are leaves.
inline void take_longer_leaves(RandomChoice& choose, annulus::PlanRequest& request) {
  using annulus::Side;
  request.rules.reproducible_leaf = choose.between(2, 6);
  request.sharding = annulus::Striped{request.rules.reproducible_leaf};
  int const ranks = static_cast<int>(request.query_lengths.size());
  auto const total = [](std::vector<annulus::Index> const& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), annulus::Index{0});
  };
  request.query_lengths = request.sharding.lengths(Side::query, ranks, total(request.query_lengths));
  request.key_lengths = request.sharding.lengths(Side::key, ranks, total(request.key_lengths));
}

/// A random block mask that covers all positions.
inline void add_blocks(RandomChoice& choose, annulus::PlanRequest& request) {
  annulus::Index const side = choose.between(1, 8), blocks = 64 / side + 1;
  std::vector<bool> visible(static_cast<std::size_t>(blocks * blocks));
  for (std::size_t i = 0; i < visible.size(); ++i) visible[i] = choose.one_in(3);
  request.rules.block_mask = annulus::BlockMask(side, side, blocks, visible);
  request.rules.query_offset = 0;
}

/// As random_plan_request, on more ranks and with all schedules. The request may be one that a plan refuses.
inline annulus::PlanRequest random_schedule_request(std::uint64_t seed) {
  using annulus::Schedule;
  RandomChoice choose(seed * 7919 + 1);
  bool const many = choose.one_in(16);
  annulus::PlanRequest request = random_plan_request(seed, many ? 64 : 24, many ? 64 : 9);
  request.schedule = choose.of({Schedule::ring, Schedule::both_directions, Schedule::two_levels, Schedule::tiles,
                                Schedule::all_gather, Schedule::double_ring});
  int const ranks = static_cast<int>(request.query_lengths.size());
  std::vector<int> divisors;
  for (int size = 1; size <= ranks; ++size)
    if (ranks % size == 0) divisors.push_back(size);
  auto const any_divisor = [&] { return divisors[static_cast<std::size_t>(choose.below(std::ssize(divisors)))]; };
  if (request.schedule == Schedule::double_ring || choose.one_in(2)) request.ranks_per_group = any_divisor();
  if (!annulus::has_groups(request.schedule) && request.schedule != Schedule::double_ring) request.ranks_per_group = 0;
  request.shape.query_heads = choose.of({6, 12, 24});
  request.shape.kv_heads = choose.of({1, 2, 3, 6});
  // Refused together, or by schedules with groups.
  if (annulus::has_groups(request.schedule) || request.schedule == Schedule::double_ring)
    request.rules.reproducible = false;
  if (request.schedule == Schedule::double_ring) request.zero_copy = false;
  if (request.schedule == Schedule::all_gather) request.rotation = annulus::Rotation::automatic;
  if (request.rules.reproducible && choose.one_in(2)) take_longer_leaves(choose, request);
  if (!annulus::has_groups(request.schedule) && choose.one_in(8)) add_blocks(choose, request);
  if (!request.rules.reproducible && choose.one_in(4)) request.joint_keys = choose.between(1, 5);
  request.checked = choose.one_in(2);
  request.gradient_bytes = request.element_bytes;
  if (choose.one_in(4)) {
    request.bound_to_queries = true;
    if (request.rotation == annulus::Rotation::queries) request.rotation = annulus::Rotation::keys;
    request.bias = {choose.of<annulus::Index>({1, request.shape.batch}),
                    choose.of<annulus::Index>({1, request.shape.query_heads})};
    if (choose.one_in(2)) request.mask = request.bias, request.elementwise = true;
    if (choose.one_in(2)) annulus::add_bias_gradient(request, choose.one_in(2));
  }
  return request;
}

}  // namespace annulus_test
