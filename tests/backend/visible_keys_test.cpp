#include "annulus/backend/visible_keys.hpp"

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "schedule/random_plan_request.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

constexpr Index batch = 2, heads = 2;

/// A step between two random shards, with all data that it refers to.
template <class Predicate>
struct RandomStep {
  std::vector<Tile> tiles;
  std::vector<Index> query_positions, key_positions;
  std::vector<std::int32_t> query_ids, key_ids;
  std::vector<char> allowed;
  Predicate predicate;
  Step<float, Predicate, HostMemory> step;

  RandomStep(std::uint64_t seed, Predicate asked) : predicate(asked) {
    RandomChoice choose(seed);
    PlanRequest const request = random_plan_request(seed, 30);
    auto const ranks = static_cast<std::int64_t>(request.query_lengths.size());
    auto const queries =
        request.sharding.segments(Side::query, static_cast<Rank>(choose.below(ranks)), request.query_lengths);
    auto const keys = request.sharding.segments(Side::key, static_cast<Rank>(choose.below(ranks)), request.key_lengths);
    bool const masked = choose.one_in(3), documents = choose.one_in(2);
    bool const elementwise = masked || !std::is_same_v<Predicate, EveryPair>;
    detail::visible_tiles(queries, keys, request.rules.mask, request.rules.query_offset.value_or(0), elementwise,
                          &tiles);
    query_positions = positions_of(queries);
    for (Index& position : query_positions) position += request.rules.query_offset.value_or(0);
    key_positions = positions_of(keys);
    step = {.tiles = tiles,
            .rules = request.rules,
            .query_positions = query_positions,
            .key_positions = key_positions,
            .predicate = &predicate};
    auto const query_rows = static_cast<Index>(query_positions.size()),
               key_rows = static_cast<Index>(key_positions.size());
    if (documents) {
      query_ids = ids(choose, query_rows);
      key_ids = ids(choose, key_rows);
      step.query_documents = {query_ids.data(), {batch, query_rows}};
      step.key_documents = {key_ids.data(), {batch, key_rows}};
    }
    if (masked) {
      Index const global_keys = 40;
      allowed.resize(static_cast<std::size_t>(batch * query_rows * global_keys));
      for (char& x : allowed) x = choose.one_in(3) ? 0 : 1;
      step.boolean_mask = {reinterpret_cast<bool const*>(allowed.data()),
                           {batch, heads, query_rows, global_keys},
                           {query_rows * global_keys, 0, global_keys, 1}};
    }
  }
  RandomStep(RandomStep const&) = delete;
  RandomStep& operator=(RandomStep const&) = delete;

  static std::vector<std::int32_t> ids(RandomChoice& choose, Index rows) {
    std::vector<int> const drawn = random_documents(choose, batch, rows);
    return {drawn.begin(), drawn.end()};
  }
};

/// Compares the runs of one query row with Step::visible for each pair. Empty if they agree.
template <class Predicate>
std::string fault(RandomStep<Predicate> const& random, Index b, Index h) {
  auto const& step = random.step;
  KeyFinder<float, Predicate> const find(step);
  std::vector<std::vector<int>> seen(random.query_positions.size(), std::vector<int>(random.key_positions.size(), 0));
  std::string wrong;
  for (Tile const& tile : step.tiles)
    for (Index i = 0; i < tile.query_count; ++i) {
      Index last = -1;
      find.for_each_run(tile, b, h, i, [&](RowRange keys) {
        if (keys.empty()) wrong = "an empty run";
        if (keys.begin <= last) wrong = "runs that touch, or are in no order";
        if (keys.begin < tile.key_begin || keys.end > tile.key_begin + tile.key_count) wrong = "a run outside its tile";
        last = keys.end;
        for (Index j = keys.begin; j < keys.end; ++j)
          ++seen[static_cast<std::size_t>(tile.query_begin + i)][static_cast<std::size_t>(j)];
      });
    }
  if (!wrong.empty()) return wrong;
  for (std::size_t i = 0; i < seen.size(); ++i)
    for (std::size_t j = 0; j < seen[i].size(); ++j)
      if (seen[i][j] != (step.visible(b, h, static_cast<Index>(i), static_cast<Index>(j)) ? 1 : 0))
        return detail::message_of("row ", i, ", key ", j, " is found ", seen[i][j], " times");
  return {};
}

template <class Predicate>
void check_seeds(Predicate const& predicate) {
  for (std::uint64_t seed = 1; seed <= 600; ++seed) {
    RandomStep<Predicate> const random(seed, predicate);
    CAPTURE(seed);
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h) REQUIRE(fault(random, b, h) == "");
  }
}

}  // namespace

TEST_CASE("the runs of a row are the visible keys", "[backend]") { check_seeds(EveryPair{}); }

TEST_CASE("a predicate receives batch, head and global positions", "[backend]") {
  check_seeds([](Index b, Index h, Index q, Index k) { return (b + 2 * h + q + 3 * k) % 5 != 0; });
}

TEST_CASE("a pair is visible if all rules hold", "[backend]") {
  // One query at position 5, keys at positions 4 to 7; the causal mask leaves two of them, each other rule leaves one.
  std::vector<Index> const queries{5}, keys{4, 5, 6, 7};
  EveryPair const every;
  Step<float, EveryPair, HostMemory> step{
      .tiles = {}, .rules = {.mask = causal()}, .query_positions = queries, .key_positions = keys, .predicate = &every};
  auto const seen = [&](auto const& rules) {
    std::string picture;
    for (Index key = 0; key < 4; ++key) picture += rules.visible(0, 0, 0, key) ? '#' : '.';
    return picture;
  };
  CHECK(seen(step) == "##..");
  std::int32_t const query_id = 3;
  std::vector<std::int32_t> const key_ids{3, 9, 3, 3};
  step.query_documents = {&query_id, {1, 1}};
  step.key_documents = {key_ids.data(), {1, 4}};
  CHECK(seen(step) == "#...");
  step.query_documents = {};
  step.key_documents = {};
  std::array<bool, 8> const allowed{true, true, true, true, false, true, true, true};  // by global position
  step.boolean_mask = {allowed.data(), {1, 1, 1, 8}};
  CHECK(seen(step) == ".#..");
  auto const odd = [](Index, Index, Index, Index key) { return key % 2 == 1; };
  Step<float, decltype(odd), HostMemory> const asked{
      .tiles = {}, .query_positions = queries, .key_positions = keys, .predicate = &odd};
  CHECK(seen(asked) == ".#.#");
}

TEST_CASE("the predicate is not called for keys that other rules hide", "[backend][C28]") {
  // Keys 2 and 3 are padding, key 4 is in the future: the predicate, which fails there, must not be called for them.
  std::vector<Index> const queries{3}, keys{0, 1, 2, 3, 4};
  std::int32_t const query_id = 1;
  std::vector<std::int32_t> const key_ids{1, 1, 0, -1, 1};
  auto const strict = [](Index, Index, Index, Index key) {
    if (key > 1) throw std::logic_error("asked about a key that cannot be seen");
    return true;
  };
  std::vector<Tile> tiles;
  std::vector<Segment> const query_segments{{0, 1, 3, 1}}, key_segments{{0, 5, 0, 1}};
  detail::visible_tiles(query_segments, key_segments, causal(), 0, true, &tiles);
  Step<float, decltype(strict), HostMemory> step{.tiles = tiles,
                                                 .rules = {.mask = causal()},
                                                 .query_positions = queries,
                                                 .key_positions = keys,
                                                 .predicate = &strict};
  step.query_documents = {&query_id, {1, 1}};
  step.key_documents = {key_ids.data(), {1, 5}};
  KeyFinder<float, decltype(strict)> const find(step);
  std::vector<RowRange> runs;
  for (Tile const& tile : tiles)
    find.for_each_run(tile, 0, 0, 0, [&](RowRange keys_of_run) { runs.push_back(keys_of_run); });
  CHECK(runs == std::vector<RowRange>{{0, 2}});
}
