#include "annulus/mask/mask.hpp"

#include "support/catch.hpp"

using namespace annulus;

namespace {

/// Visible pairs and rows of a band, found by testing every pair.
struct BruteForce {
  Index count = 0;
  RowRange queries{};
  RowRange keys{};

  BruteForce(Band band, Index query_count, Index key_count) {
    for (Index i = 0; i < query_count; ++i)
      for (Index j = 0; j < key_count; ++j)
        if (i + band.lo <= j && j <= i + band.hi) {
          ++count;
          queries = detail::hull(queries, {i, i + 1});
          keys = detail::hull(keys, {j, j + 1});
        }
  }
};

}  // namespace

TEST_CASE("count, queries_seeing and keys_seen against every pair", "[mask]") {
  for (Index queries = 0; queries <= 5; ++queries)
    for (Index keys = 0; keys <= 6; ++keys)
      for (Index lo = -8; lo <= 8; ++lo)
        for (Index hi = -9; hi <= 9; ++hi) {
          Band const band{lo, hi};
          BruteForce const seen(band, queries, keys);
          CAPTURE(queries, keys, lo, hi);
          CHECK(band.count(queries, keys) == seen.count);
          CHECK(band.queries_seeing(queries, keys) == seen.queries);
          CHECK(band.keys_seen(queries, keys) == seen.keys);
          CHECK(band.is_empty(queries, keys) == (seen.count == 0));
          if (queries > 0 && keys > 0) CHECK(band.is_full(queries, keys) == (seen.count == queries * keys));
        }
}

TEST_CASE("bands bounded on one side", "[mask]") {
  for (Index bound = -8; bound <= 8; ++bound)
    for (Index queries = 1; queries <= 5; ++queries)
      for (Index keys = 1; keys <= 6; ++keys) {
        CAPTURE(bound, queries, keys);
        // No pair of these tiles is further apart than 20.
        CHECK(Band{-unbounded, bound}.count(queries, keys) == BruteForce({-20, bound}, queries, keys).count);
        CHECK(Band{bound, unbounded}.count(queries, keys) == BruteForce({bound, 20}, queries, keys).count);
        CHECK(Band{-unbounded, bound}.keys_seen(queries, keys) == BruteForce({-20, bound}, queries, keys).keys);
        CHECK(Band{bound, unbounded}.queries_seeing(queries, keys) == BruteForce({bound, 20}, queries, keys).queries);
      }
  CHECK(Band{}.count(1000, 2000) == 2000000);
  CHECK(Band{}.is_full(1000, 2000));
}

TEST_CASE("the count of a large tile is exact", "[mask]") {
  Index const n = Index{1} << 20;
  CHECK(Band{-unbounded, 0}.count(n, n) == n * (n + 1) / 2);
  CHECK(Band{-4095, 0}.count(n, n) == 4096 * n - 4095 * 4096 / 2);
  // Twice the count does not fit into an Index.
  Index const large = Index{4'000'000'000};
  CHECK(Band{-unbounded, 0}.count(large, large) == large / 2 * (large + 1));
  CHECK(Band{-unbounded, 0}.count(large + 1, large + 1) == (large + 1) * (large / 2 + 1));
}

TEST_CASE("keys_of is the interval of a query within the tile", "[mask]") {
  Band const band{-2, 1};
  CHECK(band.keys_of(0, 5) == RowRange{0, 2});
  CHECK(band.keys_of(3, 5) == RowRange{1, 5});
  CHECK(band.keys_of(9, 5).empty());
  CHECK(Band{}.keys_of(3, 5) == RowRange{0, 5});
}

TEST_CASE("a shifted band keeps its pairs, and its unbounded sides", "[mask]") {
  Band const band{-2, 1};
  for (Index by : {-3, 0, 4})
    for (Index query = -5; query < 5; ++query)
      for (Index key = -5; key < 5; ++key) {
        bool const seen = query + by + band.lo <= key && key <= query + by + band.hi;
        CHECK(seen == (query + band.shifted(by).lo <= key && key <= query + band.shifted(by).hi));
      }
  CHECK(Band{}.shifted(7) == Band{});
  CHECK(Band{-unbounded, 3}.shifted(-5) == Band{-unbounded, -2});
}

TEST_CASE("the hull of two ranges ignores empty ones", "[mask]") {
  CHECK(detail::hull({2, 4}, {7, 9}) == RowRange{2, 9});
  CHECK(detail::hull({7, 9}, {2, 4}) == RowRange{2, 9});
  CHECK(detail::hull({0, 0}, {7, 9}) == RowRange{7, 9});
  CHECK(detail::hull({7, 9}, {100, 3}) == RowRange{7, 9});
  CHECK(RowRange{3, 3}.empty());
  CHECK(RowRange{3, 5}.size() == 2);
}
