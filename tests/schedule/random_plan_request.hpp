#pragma once
// Random plan requests over sharding x mask x lengths x offset x ranks, without data.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"
#include "support/random_ring_problem.hpp"

namespace annulus_test {

inline std::vector<annulus::Index> random_lengths(RandomChoice& choose, int ranks, annulus::Index global) {
  std::vector<annulus::Index> lengths(static_cast<std::size_t>(ranks), 0);
  // Only the first few ranks hold rows, so that some shards are empty.
  std::int64_t const busy = choose.between(1, ranks);
  for (annulus::Index left = global; left > 0;) {
    annulus::Index const take = choose.between(1, left);
    lengths[static_cast<std::size_t>(choose.below(busy))] += take;
    left -= take;
  }
  return lengths;
}

inline annulus::Mask random_mask(RandomChoice& choose, annulus::Index longest) {
  annulus::Mask mask{.causal = choose.one_in(2)};
  if (choose.one_in(2)) mask.window.left = choose.between(-1, longest);
  if (choose.one_in(3)) mask.window.right = choose.between(-1, longest);
  if (choose.one_in(4)) mask.sink_tokens = choose.between(0, longest);
  if (choose.one_in(4)) mask.chunk = choose.between(1, longest + 1);
  return mask;
}

inline annulus::PlanRequest random_plan_request(std::uint64_t seed, annulus::Index longest = 40, int most_ranks = 9) {
  RandomChoice choose(seed);
  annulus::PlanRequest request;
  int const ranks = static_cast<int>(choose.between(1, most_ranks));
  annulus::Index const queries = choose.between(0, longest);
  annulus::Index const keys = choose.one_in(2) ? queries : choose.between(0, longest);
  switch (choose.below(6)) {
    case 0:
      break;
    case 1:
      request.sharding = annulus::Striped{};
      break;
    case 2:
      request.sharding = annulus::Zigzag{};
      break;
    case 3:
      request.sharding = annulus::Striped{choose.between(2, 7)};
      break;
    case 4:
      request.sharding = annulus::ExplicitMap{random_map(choose, ranks, queries), random_map(choose, ranks, keys)};
      break;
    default:
      request.query_lengths = random_lengths(choose, ranks, queries);
      request.key_lengths = random_lengths(choose, ranks, keys);
  }
  if (request.query_lengths.empty()) {
    request.query_lengths = request.sharding.lengths(annulus::Side::query, ranks, queries);
    request.key_lengths = request.sharding.lengths(annulus::Side::key, ranks, keys);
  }
  request.pass = choose.one_in(2) ? annulus::Pass::forward : annulus::Pass::backward;
  request.shape = {.batch = choose.between(1, 2),
                   .query_heads = 6,
                   .kv_heads = choose.of<std::int64_t>({1, 2, 3, 6}),
                   .head_dim = choose.between(1, 9),
                   .value_dim = choose.between(1, 9)};
  request.rules.mask = random_mask(choose, std::max(queries, keys));
  if (choose.one_in(3)) request.rules.query_offset = choose.between(-longest, longest);
  request.rotation = choose.of({annulus::Rotation::automatic, annulus::Rotation::keys, annulus::Rotation::queries});
  request.element_bytes = choose.of({2, 4, 8});
  request.accumulator_bytes = request.lse_bytes = request.element_bytes == 8 ? 8 : 4;
  request.sinks = choose.below(3);
  request.document_ids = choose.one_in(4);
  request.elementwise = choose.one_in(5);
  request.zero_copy = choose.one_in(3);
  // Leaves of one position fit every sharding.
  if (choose.one_in(3)) request.rules.reproducible = true, request.rules.reproducible_leaf = 1;
  if (request.element_bytes > 2)
    request.wire = choose.of({annulus::Wire::as_stored, annulus::Wire::bfloat16, annulus::Wire::half});
  return request;
}

}  // namespace annulus_test
