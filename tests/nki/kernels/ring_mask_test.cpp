// Key ranges given to kernels, compared with the mask for every pair of query and key.

#include <random>

#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"
#include "support/catch.hpp"

namespace {

using namespace annulus;
using namespace annulus::nki;

std::vector<Mask> masks() {
  return {full(),
          causal(),
          sliding_window(5, 2),
          sliding_window(9, 0),
          {.causal = true, .window = {.left = 6}, .sink_tokens = 5},
          {.chunk = 7},
          {.causal = true, .chunk = 12}};
}

std::vector<std::int32_t> documents(Index length, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 1; static_cast<Index>(ids.size()) < length; ++id) {
    std::size_t const size = 1 + random() % 13;
    ids.insert(ids.end(), size, random() % 4 == 0 ? 0 : id);
  }
  ids.resize(static_cast<std::size_t>(length));
  return ids;
}

TEST_CASE("A pair is in a range iff it is visible", "[nki][ring_mask]") {
  Index pairs = 0;
  for (Sharding const& sharding :
       {Sharding(Contiguous{}), Sharding(Striped{}), Sharding(Striped{.block = 3}), Sharding(Zigzag{})})
    for (Mask const& mask : masks())
      for (bool packed : {false, true})
        for (int ranks : {1, 2, 3}) {
          Index const rows = 18, length = rows * ranks;
          std::vector<std::vector<std::int32_t>> const ids(packed ? 1 : 0, documents(length, 3));
          RingMask const ring = sharded_mask(mask, sharding, ranks, rows, rows, 0, ids, ids);
          std::vector<Index> const held(static_cast<std::size_t>(ranks), rows);
          for (int me = 0; me < ranks; ++me)
            for (int owner = 0; owner < ranks; ++owner) {
              auto const queries = positions_of(sharding.segments(Side::query, me, held)),
                         keys = positions_of(sharding.segments(Side::key, owner, held));
              for (Index i = 0; i < rows; ++i) {
                std::vector<char> seen(static_cast<std::size_t>(rows), 0);
                for (std::size_t piece = 0; piece < ring.pieces().size(); ++piece) {
                  RowRange const range = ring.seen(me, owner, 0, piece, i);
                  REQUIRE(range.begin >= ring.pieces()[piece].begin);
                  REQUIRE(range.end <= ring.pieces()[piece].end);
                  for (Index j = range.begin; j < range.end; ++j) ++seen[static_cast<std::size_t>(j)];
                  Cover const cover = ring.cover(me == owner, {i, i + 1}, piece);
                  if (!range.empty()) REQUIRE((cover.by_any.begin <= range.begin && cover.by_any.end >= range.end));
                  if (cover.full(ring.pieces()[piece])) REQUIRE(range == ring.pieces()[piece]);
                }
                for (Index j = 0; j < rows; ++j) {
                  auto const at = [](auto const& list, Index index) { return list[static_cast<std::size_t>(index)]; };
                  Index const q = at(queries, i), k = at(keys, j);
                  bool const expected =
                      mask.visible(q, k) && (!packed || annulus::detail::same_document(at(ids[0], q), at(ids[0], k)));
                  REQUIRE(at(seen, j) == expected);
                  ++pairs;
                }
              }
            }
        }
  REQUIRE(pairs > 100000);
}

TEST_CASE("The tables given to kernels hold the ranges, for rotating keys and rotating queries", "[nki][ring_mask]") {
  int bands = 0;
  for (Sharding const& sharding : {Sharding(Contiguous{}), Sharding(Striped{}), Sharding(Zigzag{})})
    for (Mask const& mask : masks())
      for (bool queries_rotate : {false, true}) {
        int const ranks = 3;
        Index const rows = 512;
        RingMask const ring = sharded_mask(mask, sharding, ranks, rows, rows);
        if (ring.form() == BoundsForm::none) continue;
        REQUIRE(ring.by_rows().form() == BoundsForm::ranges);
        for (int me = 0; me < ranks; ++me) {
          auto const band =
              ring.form() == BoundsForm::band ? ring.offsets(me, 2, queries_rotate) : std::vector<float>{};
          auto const ranges = ring.by_rows().ranges(me, 2, queries_rotate);
          bands += !band.empty();
          std::size_t const pieces = ring.pieces().size();
          for (int other = 0; other < 2 * ranks; ++other)
            for (std::size_t q = 0; q < ring.query_pieces().size(); ++q)
              for (std::size_t piece = 0; piece < pieces; ++piece)
                for (Index i = ring.query_pieces()[q].begin; i < ring.query_pieces()[q].end; i += 37) {
                  int const querying = queries_rotate ? other % ranks : me, owner = queries_rotate ? me : other % ranks;
                  RowRange const seen = ring.seen(querying, owner, 0, piece, i);
                  std::size_t const at =
                      ((static_cast<std::size_t>(other) * pieces + piece) * 2) * static_cast<std::size_t>(rows) +
                      static_cast<std::size_t>(i);
                  REQUIRE(ranges[at] == static_cast<float>(seen.begin));
                  REQUIRE(ranges[at + static_cast<std::size_t>(rows)] == static_cast<float>(seen.end));
                  if (band.empty()) continue;
                  std::size_t const offset =
                      ((static_cast<std::size_t>(other) * ring.query_pieces().size() + q) * pieces + piece) * 2;
                  RowRange const keys = ring.pieces()[piece];
                  auto const begin = std::max<Index>(keys.begin, i + static_cast<Index>(band[offset]));
                  auto const end = std::min<Index>(keys.end, i + static_cast<Index>(band[offset + 1]));
                  if (seen.empty())
                    REQUIRE(begin >= end);
                  else
                    REQUIRE((begin == seen.begin && end == seen.end));
                }
        }
      }
  REQUIRE(bands > 10);
}

TEST_CASE("The halves that a causal zigzag ring chooses are the visible pairs", "[nki][ring_mask]") {
  Index const rows = 1024, half = rows / 2;
  for (int ranks : {2, 3, 4})
    for (bool queries_rotate : {false, true}) {
      auto const ring = sharded_mask(causal(), Zigzag{}, ranks, rows, rows).with_chosen_halves();
      REQUIRE(ring);
      REQUIRE(ring->chooses_halves());
      std::vector<Index> const held(static_cast<std::size_t>(ranks), rows);
      for (int me = 0; me < ranks; ++me) {
        std::vector<float> const table = ring->offsets(me, 1, queries_rotate);
        for (int other = 0; other < ranks; ++other) {
          if (me == other) continue;
          auto const queries =
                         positions_of(Sharding(Zigzag{}).segments(Side::query, queries_rotate ? other : me, held)),
                     keys = positions_of(Sharding(Zigzag{}).segments(Side::key, queries_rotate ? me : other, held));
          bool const early = table[static_cast<std::size_t>(other) * 8 + 1] > 0;  // as BoundsTiles::load_choice
          for (Index i : {Index{0}, half - 1, half, rows - 1})
            for (Index j : {Index{0}, half - 1, half, rows - 1}) {
              bool const expected = j < half ? i >= half || early : i >= half && !early;
              REQUIRE((keys[static_cast<std::size_t>(j)] <= queries[static_cast<std::size_t>(i)]) == expected);
            }
        }
      }
      for (std::size_t piece : {0, 1}) {
        REQUIRE(ring->cover(false, {0, half}, piece).by_any.empty());
        REQUIRE(ring->cover(false, {half, rows}, piece).full(ring->pieces()[piece]));
        REQUIRE(!ring->cover(true, {half, rows}, 1).full(ring->pieces()[1]));
      }
    }
  auto const chosen = [](Mask const& mask, Sharding const& sharding, int ranks, Index local, Index offset = 0) {
    return sharded_mask(mask, sharding, ranks, local, local, offset).with_chosen_halves().has_value();
  };
  REQUIRE(chosen(causal(), Zigzag{}, 2, 1024));
  REQUIRE(!chosen(causal(), Zigzag{}, 1, 1024));
  REQUIRE(chosen(causal(), Zigzag{}, 2, 1536));
  REQUIRE(chosen(causal(), Zigzag{}, 2, 512));
  REQUIRE(chosen(causal(), Zigzag{}, 2, 768));
  for (Index local : {800, 1000, 1150, 1154, 5000}) REQUIRE(chosen(causal(), Zigzag{}, 2, local));
  for (Index local : {256, 640, 798, 1201}) REQUIRE(!chosen(causal(), Zigzag{}, 2, local));
  REQUIRE(!chosen(causal(), Zigzag{}, 2, 1024, 700));
  REQUIRE(!chosen(causal(), Contiguous{}, 2, 1024));
  REQUIRE(!chosen(causal(), Striped{}, 2, 1024));
  REQUIRE(!chosen(sliding_window(1500, 0), Zigzag{}, 2, 1024));
  std::vector<std::vector<std::int32_t>> const ids(1, std::vector<std::int32_t>(2048, 1));
  REQUIRE(!sharded_mask(causal(), Zigzag{}, 2, 1024, 1024, 0, ids, ids).with_chosen_halves());
}

TEST_CASE("A mask that does not match the kernel or has too many runs is refused", "[nki][ring_mask]") {
  KernelSpec spec{.ranks = 2, .shape = {}, .local_queries = 64, .local_keys = 64};
  RingMask const mask = sharded_mask(causal(), Contiguous{}, 2, 64, 64);
  REQUIRE_NOTHROW(mask.check_for(spec, 2));
  REQUIRE_THROWS_AS(mask.check_for(spec, 4), ShapeError);
  spec.local_keys = 65;
  REQUIRE_THROWS_AS(mask.check_for(spec, 2), ShapeError);
  REQUIRE_THROWS_AS(sharded_mask(causal(), Striped{.block = 1}, 1, 64, 64, 0,
                                 std::vector<std::vector<std::int32_t>>(1, std::vector<std::int32_t>(64, 1))),
                    ShapeError);
  REQUIRE_THROWS_AS(sharded_mask(causal(), Striped{.block = 2}, 2, 128, 128), UnsupportedError);
  std::vector<std::vector<std::int32_t>> const interrupted(1, {1, 2, 1, 2});
  REQUIRE_THROWS_AS(sharded_mask(full(), Contiguous{}, 1, 4, 4, 0, interrupted, interrupted), UnsupportedError);
}

TEST_CASE("Row tiles hold every row once, or twice where an odd row is shared", "[nki][row_tiles]") {
  for (Index rows : {1, 2, 3, 63, 127, 128, 129, 200, 255, 256, 257, 300, 511, 513, 1000})
    for (Index cut : {Index{0}, rows / 2, rows / 3})
      for (bool shared : {false, true}) {
        std::vector<RowRange> pieces{{cut, rows}};
        if (cut > 0) pieces.insert(pieces.begin(), {0, cut});
        std::vector<int> count(static_cast<std::size_t>(rows), 0);
        Index odd = 0;
        for (RowTile const& tile : row_tiles(pieces, shared)) {
          odd += tile.overlaps;
          RowRange const all = tile.rows_of_all_cores;
          REQUIRE((all.end <= cut || all.begin >= cut));
          for (Index core = 0; core < (shared ? 2 : 1); ++core) {
            Index const begin = tile.begin.at(std::vector<Index>{core});
            REQUIRE(tile.count <= tile_rows);
            REQUIRE((begin >= all.begin && begin + tile.count <= all.end));
            for (Index i = 0; i < tile.count; ++i) ++count[static_cast<std::size_t>(begin + i)];
          }
        }
        Index total = 0;
        for (int c : count) {
          REQUIRE((c == 1 || c == 2));
          total += c;
        }
        REQUIRE(total == rows + odd);
        REQUIRE(odd <= (shared ? rows % 2 + 2 * (cut > 0) : 0));
      }
}

/// Counts how often instructions of a body write each element of a tensor; each DMA must take row r of a [128, columns]
/// layout from the partition and the column of SBUF that hold the row.
void count_writes(Body const& body, std::vector<Index> const& cores, std::vector<RowTile> const& tiles, Index columns,
                  std::vector<int>& writes) {
  for (Node const& node : body) {
    if (auto const* branch = node.as<OnCore>()) count_writes(branch->body, {branch->core}, tiles, columns, writes);
    auto const* instruction = node.as<Instruction>();
    if (!instruction) continue;
    auto const& copy = std::get<DmaCopy>(*instruction);
    for (Index core : cores)
      for (Index p = 0; p < copy.src.partitions(); ++p)
        for (Index i = 0; i < copy.src.elements(); ++i) {
          std::vector<Index> const values{core};
          Index const place = copy.dst.offset.at(values) + p * copy.dst.axis(0).stride + i * copy.dst.axis(1).stride;
          Index const row = place % columns * tile_rows + place / columns;
          RowTile const& tile = nth(tiles, copy.src.offset.at(values) + i);
          REQUIRE(tile.begin.at(values) + copy.src.start_partition + p == row);
          ++writes[static_cast<std::size_t>(place)];
        }
  }
}

TEST_CASE("The values of each row are stored once, in tiles that end in the next column too", "[nki][row_tiles]") {
  for (Index half : {1, 64, 127, 128, 129, 200, 255, 257, 301, 640})
    for (bool shared : {false, true}) {
      std::vector<RowTile> const tiles = row_tiles({{0, half}, {half, 2 * half}}, shared);
      Index const columns = detail::ceil_divide(2 * half, tile_rows);
      Builder builder("stores", Target::trn2, 2, 1);
      TensorHandle const to = builder.tensor("to", {tile_rows, columns}, ElementType::float32, Role::output);
      TileHandle const from = builder.tile("from", Memory::sbuf, tile_rows, std::ssize(tiles), ElementType::float32);
      Body const stores = builder.collect([&] { store_columns(builder, from, tiles, {to, 0, tile_rows, columns}); });
      std::vector<int> writes(static_cast<std::size_t>(tile_rows * columns), 0);
      count_writes(stores, shared ? std::vector<Index>{0, 1} : std::vector<Index>{0}, tiles, columns, writes);
      for (Index place = 0; place < tile_rows * columns; ++place) {
        bool const is_row = place % columns * tile_rows + place / columns < 2 * half;
        REQUIRE(nth(writes, place) == (is_row ? 1 : 0));
      }
    }
}

}  // namespace
