#include "annulus/mask/tile.hpp"

#include <utility>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

/// Checks that keys_of contains exactly the keys that each query of the tile sees.
void check_keys(Tile const& tile, Mask const& mask) {
  for (Index i = 0; i < tile.query_count; ++i) {
    RowRange const range = tile.keys_of(mask, i);
    CHECK((0 <= range.begin && range.end <= tile.key_count));
    for (Index j = 0; j < tile.key_count; ++j) {
      bool const inside = range.begin <= j && j < range.end;
      Index const query = tile.query_position + i * tile.query_stride, key = tile.key_position + j * tile.key_stride;
      CHECK(inside == mask.keys_of(query, tile.sink).contains(key));
    }
  }
}

}  // namespace

TEST_CASE("key ranges of a tile match the mask, for any strides", "[mask]") {
  std::vector<Mask> const masks{causal(), sliding_window(4, 0), sliding_window(2, 3), Mask{.chunk = 5},
                                Mask{.causal = true, .window = {.left = 3, .right = {}}, .chunk = 7}};
  for (Mask const& mask : masks)
    for (Index query_stride : {1, 3})
      for (Index key_stride : {1, 2, 4})
        for (Index query_position : {-6, 0, 11})
          for (bool sink : {false, true})
            check_keys({.query_begin = 3,
                        .query_count = 6,
                        .key_begin = 2,
                        .key_count = 7,
                        .query_position = query_position,
                        .query_stride = query_stride,
                        .key_position = 4,
                        .key_stride = key_stride,
                        .sink = sink,
                        .coverage = Coverage::ranges},
                       mask);
}

TEST_CASE("a tile of elements is bounded by the range of the mask", "[mask]") {
  Tile const tile{.query_count = 4, .key_count = 6, .query_position = 2, .coverage = Coverage::elements};
  CHECK(tile.keys_of(causal(), 0) == RowRange{0, 3});
  CHECK(tile.keys_of(causal(), 3) == RowRange{0, 6});
}

TEST_CASE("key ranges of full and of irregular tiles are all keys, whatever the mask", "[mask]") {
  Tile const full_tile{.query_count = 4, .key_count = 6, .coverage = Coverage::full};
  CHECK(full_tile.keys_of(causal(), 0) == RowRange{0, 6});
  Tile const unordered{.query_count = 4, .key_count = 6, .key_stride = 0, .coverage = Coverage::elements};
  CHECK(unordered.keys_of(causal(), 0) == RowRange{0, 6});
}

TEST_CASE("a band tile uses its band", "[mask]") {
  Tile const tile{.query_count = 4, .key_count = 6, .coverage = Coverage::band, .band = {0, 1}};
  CHECK(tile.keys_of(full(), 2) == RowRange{2, 4});
}

TEST_CASE("a clipped tile has the same visible pairs", "[mask]") {
  Mask const mask{.causal = true, .window = {.left = 9, .right = {}}};
  // A tile of queries [3, 9) x keys [2, 9); a pair is given by its rows in the shards.
  auto const pairs_within = [&](Tile const& tile, RowRange queries, RowRange keys) {
    std::vector<std::pair<Index, Index>> pairs;
    for (Index i = 0; i < tile.query_count; ++i)
      for (Index j = tile.keys_of(mask, i).begin; j < tile.keys_of(mask, i).end; ++j) {
        Index const query = tile.query_begin + i, key = tile.key_begin + j;
        if (queries.begin <= query && query < queries.end && keys.begin <= key && key < keys.end)
          pairs.emplace_back(query, key);
      }
    return pairs;
  };
  RowRange const every{-100, 100};
  for (Index stride : {1, 2})
    for (Coverage coverage : {Coverage::ranges, Coverage::band}) {
      Tile const tile{.query_begin = 3,
                      .query_count = 6,
                      .key_begin = 2,
                      .key_count = 7,
                      .query_position = 10,
                      .query_stride = stride,
                      .key_position = 6,
                      .key_stride = stride,
                      .coverage = coverage,
                      .band = {stride == 1 ? -5 : -2, stride == 1 ? 4 : 2}};
      for (RowRange rows : {RowRange{0, 100}, {3, 5}, {4, 7}, {8, 20}}) {
        Tile const by_queries = tile.with_queries(rows), by_keys = tile.with_keys(rows);
        CHECK((by_queries.query_begin >= rows.begin && by_queries.query_begin + by_queries.query_count <= rows.end));
        CHECK((by_keys.key_begin >= rows.begin && by_keys.key_begin + by_keys.key_count <= rows.end));
        CHECK(pairs_within(by_queries, every, every) == pairs_within(tile, rows, every));
        CHECK(pairs_within(by_keys, every, every) == pairs_within(tile, every, rows));
      }
    }
}

TEST_CASE("each coverage has a name", "[mask]") {
  CHECK(name_of(Coverage::none) == "none");
  CHECK(name_of(Coverage::full) == "full");
  CHECK(name_of(Coverage::band) == "band");
  CHECK(name_of(Coverage::ranges) == "ranges");
  CHECK(name_of(Coverage::elements) == "elements");
}
