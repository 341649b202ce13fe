#include "annulus/schedule/visible_tiles.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schedule/random_plan_request.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

struct Shards {
  std::vector<Segment> queries, keys;
  Mask mask{};
  Index query_offset = 0;
};

struct Found {
  std::vector<Tile> tiles;
  detail::Need need;
};

Found find(Shards const& shards, bool elementwise = false) {
  Found found;
  found.need =
      detail::visible_tiles(shards.queries, shards.keys, shards.mask, shards.query_offset, elementwise, &found.tiles);
  return found;
}

/// Number of tiles in which each (query row, key row) is visible.
std::map<std::pair<Index, Index>, int> shown(Shards const& shards, std::vector<Tile> const& tiles) {
  auto const queries = positions_of(shards.queries), keys = positions_of(shards.keys);
  std::map<std::pair<Index, Index>, int> times;
  for (Tile const& tile : tiles)
    for (Index i = 0; i < tile.query_count; ++i) {
      RowRange const range = tile.keys_of(shards.mask, i);
      for (Index j = range.begin; j < range.end; ++j) {
        Index const query = tile.query_begin + i, key = tile.key_begin + j;
        Index const q = queries.at(static_cast<std::size_t>(query)) + shards.query_offset;
        if (tile.coverage == Coverage::elements && !shards.mask.visible(q, keys.at(static_cast<std::size_t>(key))))
          continue;
        ++times[{query, key}];
      }
    }
  return times;
}

/// Checks that each visible pair is in exactly one tile, no other pair is, and the need is exact. Returns the fault.
std::string fault(Shards const& shards, bool elementwise) {
  Found const found = find(shards, elementwise);
  auto const times = shown(shards, found.tiles);
  auto const queries = positions_of(shards.queries), keys = positions_of(shards.keys);
  detail::Need exact;
  for (Index i = 0; i < static_cast<Index>(queries.size()); ++i)
    for (Index j = 0; j < static_cast<Index>(keys.size()); ++j) {
      Index const q = queries[static_cast<std::size_t>(i)] + shards.query_offset, k = keys[static_cast<std::size_t>(j)];
      bool const visible = shards.mask.visible(q, k);
      auto const time = times.find({i, j});
      int const seen = time == times.end() ? 0 : time->second;
      if (seen != (visible ? 1 : 0)) return detail::message_of("pair (", q, ", ", k, ") is shown ", seen, " times");
      if (!visible) continue;
      ++exact.visible_pairs;
      exact.queries = detail::hull(exact.queries, {i, i + 1});
      exact.keys = detail::hull(exact.keys, {j, j + 1});
    }
  if (found.need.visible_pairs != exact.visible_pairs)
    return detail::message_of(found.need.visible_pairs, " pairs are counted, ", exact.visible_pairs, " are visible");
  if (!(found.need.queries == exact.queries && found.need.keys == exact.keys))
    return "the rows that take part are wrong";
  Index sum = 0;
  for (Tile const& tile : found.tiles) sum += tile.visible_pairs;
  if (sum != exact.visible_pairs) return "the counts of the tiles do not add up";
  for (Tile const& tile : found.tiles) {
    if (tile.visible_pairs == 0 || tile.coverage == Coverage::none) return "there is a tile with nothing visible";
    if (elementwise && tile.coverage != Coverage::elements) return "a tile is not masked element by element";
  }
  detail::Need const counted_only =
      detail::visible_tiles(shards.queries, shards.keys, shards.mask, shards.query_offset, elementwise, nullptr);
  if (counted_only.visible_pairs != exact.visible_pairs) return "the need depends on whether tiles are requested";
  return {};
}

Index tiles_of(Shards const& shards, Coverage coverage) {
  auto const tiles = find(shards).tiles;
  return std::count_if(tiles.begin(), tiles.end(), [&](Tile const& tile) { return tile.coverage == coverage; });
}

std::vector<Segment> shard(Sharding const& sharding, Rank rank, int ranks, Index global) {
  return sharding.segments(Side::query, rank, sharding.lengths(Side::query, ranks, global));
}

}  // namespace

TEST_CASE("each visible pair is in exactly one tile", "[schedule][C42]") {
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    PlanRequest const request = random_plan_request(seed, 24);
    auto const ranks = static_cast<int>(request.query_lengths.size());
    RandomChoice choose(seed);
    Shards const shards{
        request.sharding.segments(Side::query, static_cast<Rank>(choose.below(ranks)), request.query_lengths),
        request.sharding.segments(Side::key, static_cast<Rank>(choose.below(ranks)), request.key_lengths),
        request.rules.mask, request.rules.query_offset.value_or(0)};
    CAPTURE(seed);
    REQUIRE(fault(shards, request.elementwise) == "");
  }
}

TEST_CASE("tiles of segments of different strides", "[schedule]") {
  Shards shards{{{0, 5, 3, 2}, {5, 4, 20, 1}, {9, 1, 0, 1}}, {{0, 6, 1, 5}, {6, 3, 2, 2}, {9, 4, 30, 1}}, {}, 0};
  for (Mask const& mask : {causal(), sliding_window(4, 3), Mask{.causal = true, .chunk = 8}, sliding_window(0, 0)})
    for (Index offset : {-25, 0, 7}) {
      shards.mask = mask;
      shards.query_offset = offset;
      CHECK(fault(shards, false) == "");
      CHECK(fault(shards, true) == "");
    }
}

TEST_CASE("empty shards have no tiles", "[schedule][C29]") {
  for (Mask const& mask : {full(), causal()}) {
    CHECK(find({{}, {{0, 4, 0, 1}}, mask, 0}).tiles.empty());
    CHECK(find({{{0, 4, 0, 1}}, {}, mask, 0}).tiles.empty());
    Found const nothing = find({{}, {}, mask, 0});
    CHECK((nothing.tiles.empty() && nothing.need.visible_pairs == 0 && nothing.need.keys.empty()));
  }
}

TEST_CASE("without a mask there is one full tile, whatever the sharding", "[schedule]") {
  for (Sharding const& sharding :
       {Sharding(), Sharding(Striped{}), Sharding(Striped{.block = 2}), Sharding(Zigzag{})}) {
    Found const found = find({shard(sharding, 1, 4, 32), shard(sharding, 2, 4, 32), full(), 5});
    REQUIRE(found.tiles.size() == 1);
    CHECK(found.tiles[0].coverage == Coverage::full);
    CHECK(found.tiles[0].visible_pairs == 64);
  }
}

TEST_CASE("causal contiguous shards: a band for own keys, full for earlier, none for later ones", "[schedule]") {
  Shards shards{shard({}, 1, 3, 12), shard({}, 1, 3, 12), causal(), 0};
  CHECK(tiles_of(shards, Coverage::band) == 1);
  CHECK(find(shards).tiles[0].band == Band{-unbounded, 0});
  CHECK(find(shards).need.visible_pairs == 10);
  shards.keys = shard({}, 0, 3, 12);
  CHECK(tiles_of(shards, Coverage::full) == 1);
  shards.keys = shard({}, 2, 3, 12);
  CHECK(find(shards).tiles.empty());
}

TEST_CASE("causal stripes are one band, shifted for higher owners", "[schedule]") {
  Shards shards{shard(Striped{}, 1, 4, 32), shard(Striped{}, 1, 4, 32), causal(), 0};
  REQUIRE(tiles_of(shards, Coverage::band) == 1);
  CHECK(find(shards).tiles[0].band == Band{-unbounded, 0});
  shards.keys = shard(Striped{}, 2, 4, 32);
  REQUIRE(tiles_of(shards, Coverage::band) == 1);
  CHECK(find(shards).tiles[0].band == Band{-unbounded, -1});
  CHECK(find(shards).need.visible_pairs == 28);
}

TEST_CASE("full tiles of causal zigzag shards are merged", "[schedule]") {
  Index const block = 4;
  int const ranks = 4;
  Shards shards{shard(Zigzag{}, 1, ranks, 8 * block), shard(Zigzag{}, 0, ranks, 8 * block), causal(), 0};
  // A lower owner: all queries see the owner's first block.
  Found const behind = find(shards);
  REQUIRE(behind.tiles.size() == 1);
  CHECK(behind.tiles[0].coverage == Coverage::full);
  CHECK((behind.tiles[0].query_count == 2 * block && behind.tiles[0].key_count == block));
  // A higher owner: the second block of queries sees all keys.
  shards.keys = shard(Zigzag{}, 2, ranks, 8 * block);
  Found const ahead = find(shards);
  REQUIRE(ahead.tiles.size() == 1);
  CHECK(ahead.tiles[0].coverage == Coverage::full);
  CHECK((ahead.tiles[0].query_begin == block && ahead.tiles[0].query_count == block));
  CHECK((ahead.tiles[0].key_begin == 0 && ahead.tiles[0].key_count == 2 * block));
  // The rank's own keys: two bands, and one full tile between them.
  shards.keys = shards.queries;
  CHECK(tiles_of(shards, Coverage::band) == 2);
  CHECK(tiles_of(shards, Coverage::full) == 1);
}

TEST_CASE("full blocks of one row of tiles are merged", "[schedule]") {
  Sharding const sharding = Striped{.block = 4};
  // Rank 1's block b sees blocks 0 .. b of rank 0: one full tile per row. Of its own: the blocks before it, and a band.
  Shards shards{shard(sharding, 1, 2, 64), shard(sharding, 0, 2, 64), causal(), 0};
  CHECK(tiles_of(shards, Coverage::full) == 8);
  CHECK(find(shards).tiles.size() == 8);
  shards.keys = shards.queries;
  CHECK(tiles_of(shards, Coverage::full) == 7);
  CHECK(tiles_of(shards, Coverage::band) == 8);
}

TEST_CASE("chunks are ranges at the edges and full inside", "[schedule]") {
  Mask const mask{.chunk = 6};
  CHECK(tiles_of({{{0, 6, 6, 1}}, {{0, 6, 6, 1}}, mask, 0}, Coverage::full) == 1);
  CHECK(tiles_of({{{0, 8, 0, 1}}, {{0, 8, 0, 1}}, mask, 0}, Coverage::ranges) == 1);
  CHECK(find({{{0, 6, 0, 1}}, {{0, 6, 6, 1}}, mask, 0}).tiles.empty());
}

TEST_CASE("keys are split where the sink tokens end", "[schedule]") {
  Mask const mask{.causal = true, .window = {.left = 1, .right = {}}, .sink_tokens = 3};
  Shards const shards{{{0, 4, 8, 1}}, {{0, 8, 0, 1}}, mask, 0};
  Found const found = find(shards);
  REQUIRE(found.tiles.size() == 2);
  CHECK((found.tiles[0].sink && found.tiles[0].coverage == Coverage::full && found.tiles[0].key_count == 3));
  CHECK((!found.tiles[1].sink && found.tiles[1].coverage == Coverage::band && found.tiles[1].visible_pairs == 1));
  CHECK(fault(shards, false) == "");
  // Stride 3: of the keys 1, 4, 7, 10 one is below 3, two are below 5.
  Shards const striped{
      {{0, 4, 20, 3}}, {{0, 4, 1, 3}}, {.causal = true, .window = {.left = 0, .right = {}}, .sink_tokens = 5}, 0};
  CHECK(find(striped).need.keys == RowRange{0, 2});
  CHECK(fault(striped, false) == "");
}

TEST_CASE("any number of sink tokens is accepted", "[schedule]") {
  for (Index sink_tokens : {Index{8}, Index{1000}, std::numeric_limits<Index>::max()}) {
    Mask const mask{.causal = true, .window = {.left = 0, .right = {}}, .sink_tokens = sink_tokens};
    CHECK(find({{{0, 4, 9, 2}}, {{0, 4, 0, 2}}, mask, 0}).need.visible_pairs == 16);
  }
}

TEST_CASE("above the limit of segment pairs there is one tile masked element by element", "[schedule]") {
  std::vector<Segment> scattered;
  for (Index i = 0; i < 300; ++i) scattered.push_back({i, 1, 299 - i, 1});
  REQUIRE(scattered.size() * scattered.size() > detail::tile_limit);
  Found const found = find({scattered, scattered, causal(), 0});
  REQUIRE(found.tiles.size() == 1);
  Tile const& tile = found.tiles[0];
  CHECK(tile.coverage == Coverage::elements);
  CHECK((tile.query_count == 300 && tile.key_count == 300 && tile.key_stride == 0));
  CHECK(found.need.visible_pairs == 90000);  // an upper bound
  auto const times = shown({scattered, scattered, causal(), 0}, found.tiles);
  CHECK(times.size() == 300 * 301 / 2);
  CHECK(find({scattered, scattered, full(), 0}).tiles[0].coverage == Coverage::full);
}

TEST_CASE("the largest number of tiles is merged in acceptable time", "[schedule]") {
  // Just below the limit: 255 x 255 segments of one position, most of them full tiles that cannot be merged.
  std::vector<Segment> queries, keys;
  for (Index i = 0; i < 255; ++i) {
    queries.push_back({i, 1, 3 * (i * 101 % 255), 1});
    keys.push_back({i, 1, 3 * (i * 67 % 255) + 1, 1});
  }
  CHECK(fault({queries, keys, sliding_window(300, 300), 0}, false) == "");
}
