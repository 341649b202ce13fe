// Host data of steps on a GPU: lists of blocks, and what is uploaded once.

#include "annulus/backend/cuda/uploaded_steps.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "annulus/schedule/visible_tiles.hpp"
#include "schedule/random_plan_request.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using cuda::detail::pair_block;

namespace {

/// Tiles and positions of a step between two random shards of up to 300 rows.
struct RandomStep {
  PlanRequest request;
  std::vector<Tile> tiles;
  std::vector<Index> queries, keys;

  explicit RandomStep(std::uint64_t seed) : request(random_plan_request(seed, 300, 3)) {
    RandomChoice choose(seed);
    auto const ranks = static_cast<std::int64_t>(request.query_lengths.size());
    auto const segments = [&](Side side, std::vector<Index> const& lengths) {
      return request.sharding.segments(side, static_cast<Rank>(choose.below(ranks)), lengths);
    };
    auto const query_segments = segments(Side::query, request.query_lengths),
               key_segments = segments(Side::key, request.key_lengths);
    Index const offset = request.rules.query_offset.value_or(0);
    detail::visible_tiles(query_segments, key_segments, request.rules.mask, offset, request.elementwise, &tiles);
    queries = positions_of(query_segments);
    for (Index& position : queries) position += offset;
    keys = positions_of(key_segments);
  }

  cuda::detail::StepPlaces places() const { return {tiles, queries, keys, request.rules.mask, {}}; }
  bool visible(Index query, Index key) const {
    return request.rules.mask.visible(queries[static_cast<std::size_t>(query)], keys[static_cast<std::size_t>(key)]);
  }
};

/// How a list has a pair of blocks: absent, untested or tested.
char listed(cuda::detail::BlockList const& list, Index block, Index other) {
  auto const first = list.first[static_cast<std::size_t>(block)], end = list.first[static_cast<std::size_t>(block) + 1];
  for (int n = first; n < end; ++n)
    if (auto const& run = list.runs[static_cast<std::size_t>(n)]; run.begin <= other && other < run.end)
      return run.tested ? 't' : 'u';
  return '-';
}

}  // namespace

TEST_CASE("block lists hold all visible pairs, and untested blocks no hidden one", "[backend][cuda]") {
  int untested = 0, absent = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    RandomStep const step(seed);
    cuda::detail::BlockLists const lists(step.tiles, step.request.rules.mask, std::ssize(step.queries),
                                         std::ssize(step.keys));
    CAPTURE(seed);
    Index const query_blocks = (std::ssize(step.queries) + pair_block - 1) / pair_block,
                key_blocks = (std::ssize(step.keys) + pair_block - 1) / pair_block;
    REQUIRE(std::ssize(lists.of_queries().first) == query_blocks + 1);
    REQUIRE(std::ssize(lists.of_keys().first) == key_blocks + 1);
    for (Index i = 0; i < query_blocks; ++i)
      for (Index j = 0; j < key_blocks; ++j) {
        char const found = listed(lists.of_queries(), i, j);
        REQUIRE(listed(lists.of_keys(), j, i) == found);
        untested += found == 'u';
        absent += found == '-';
        for (Index query = i * pair_block; query < std::min((i + 1) * pair_block, std::ssize(step.queries)); ++query)
          for (Index key = j * pair_block; key < std::min((j + 1) * pair_block, std::ssize(step.keys)); ++key)
            if (step.visible(query, key) ? found == '-' : found == 'u')
              FAIL("query " << query << ", key " << key << " in a block listed as " << found);
      }
  }
  CHECK((untested > 100 && absent > 100));
}

TEST_CASE("a step of equal content is uploaded once", "[backend][cuda][gpu]") {
  cuda::detail::Stream const stream = cuda::detail::make_stream();
  cuda::detail::UploadedSteps steps;
  RandomStep first(1), other(2);
  auto const* const positions = steps.find(first.places(), stream).query_positions;
  CHECK(steps.find(other.places(), stream).query_positions != positions);
  RandomStep const equal(1);
  CHECK(steps.find(equal.places(), stream).query_positions == positions);
  CHECK(steps.size() == 2);
  std::vector<Index> uploaded(first.queries.size());
  // The source may be overwritten after the call.
  std::vector<Index> const expected = first.queries;
  std::fill(first.queries.begin(), first.queries.end(), Index{-1});
  cuda::detail::check(
      cudaMemcpyAsync(uploaded.data(), positions, uploaded.size() * sizeof(Index), cudaMemcpyDefault, stream),
      "cudaMemcpyAsync");
  CudaMemory::Queue{stream}.wait();
  CHECK(uploaded == expected);
}

TEST_CASE("what is uploaded differs in each part of a step", "[backend][cuda][gpu]") {
  cuda::detail::Stream const stream = cuda::detail::make_stream();
  cuda::detail::UploadedSteps steps;
  std::vector<Index> const positions{0, 1, 2, 3}, moved{0, 1, 2, 4};
  std::vector<Tile> const tiles{{.query_count = 4, .key_count = 4, .coverage = Coverage::full}},
      elements{{.query_count = 4, .key_count = 4, .coverage = Coverage::elements}};
  cuda::detail::StepPlaces const step{tiles, positions, positions, {}, {}};
  std::vector<cuda::detail::StepPlaces> all(6, step);
  all[1].query_positions = moved;
  all[2].key_positions = moved;
  all[3].tiles = elements;
  all[4].mask = causal();
  all[5].block_mask = BlockMask(4, 4, 1, {true});
  for (auto const& places : all) steps.find(places, stream);
  CHECK(steps.size() == all.size());
  for (auto const& places : all) steps.find(places, stream);
  CHECK(steps.size() == all.size());
}

TEST_CASE("uploaded steps keep within their limit", "[backend][cuda][gpu]") {
  cuda::detail::Stream const stream = cuda::detail::make_stream();
  cuda::detail::UploadedSteps steps({}, 20'000);
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    steps.find(RandomStep(seed).places(), stream);
    CHECK((steps.bytes() <= 20'000 || steps.size() == 1));
  }
  cuda::detail::DeviceBytes const memory = cuda::detail::allocate_device(20'000);
  std::span<std::byte> const given(memory.data(), 20'000);
  cuda::detail::UploadedSteps in_given(given);
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    auto const* const place =
        reinterpret_cast<std::byte const*>(in_given.find(RandomStep(seed).places(), stream).key_positions);
    CHECK((place >= given.data() && place <= given.data() + given.size()));
  }
  cuda::detail::UploadedSteps small(given.first(64));
  std::vector<Index> const positions(100, 0);
  CHECK_THROWS_AS(small.find({{}, positions, positions, {}, {}}, stream), Error);
}
