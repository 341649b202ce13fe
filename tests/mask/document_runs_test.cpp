#include "annulus/mask/mask.hpp"

#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

detail::DocumentRuns runs_of(std::vector<std::int32_t> const& ids) {
  return detail::DocumentRuns(static_cast<Index>(ids.size()),
                              [&](Index row) { return ids[static_cast<std::size_t>(row)]; });
}

}  // namespace

TEST_CASE("only rows with the same positive document id see each other", "[mask][C22]") {
  constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t smallest = std::numeric_limits<std::int32_t>::min();
  CHECK(detail::same_document(1, 1));
  CHECK(detail::same_document(largest, largest));
  CHECK_FALSE(detail::same_document(1, 2));
  CHECK_FALSE(detail::same_document(0, 0));
  CHECK_FALSE(detail::same_document(-1, -1));
  CHECK_FALSE(detail::same_document(smallest, smallest));
  CHECK_FALSE(detail::same_document(0, 1));
  CHECK_FALSE(detail::same_document(1, 0));
}

TEST_CASE("each packed document is one run", "[mask]") {
  auto const runs = runs_of({0, 5, 5, 5, 2, 9, 9, -1});
  CHECK(runs.consecutive());
  CHECK(runs.rows_of(5) == RowRange{1, 4});
  CHECK(runs.rows_of(2) == RowRange{4, 5});
  CHECK(runs.rows_of(9) == RowRange{5, 7});
}

TEST_CASE("padding and unknown documents have no rows", "[mask]") {
  auto const runs = runs_of({0, 5, -1, -1, 0});
  CHECK(runs.rows_of(0).empty());
  CHECK(runs.rows_of(-1).empty());
  CHECK(runs.rows_of(7).empty());
}

TEST_CASE("a document in several runs is detected, and its range contains all of them", "[mask]") {
  auto const runs = runs_of({3, 3, 0, 3, 4, 4});
  CHECK_FALSE(runs.consecutive());
  CHECK(runs.rows_of(3) == RowRange{0, 4});
  CHECK(runs.rows_of(4) == RowRange{4, 6});
  CHECK_FALSE(runs_of({1, 2, 1}).consecutive());
}

TEST_CASE("no keys or only padding: no runs", "[mask]") {
  CHECK(runs_of({}).consecutive());
  CHECK(runs_of({}).rows_of(1).empty());
  CHECK(detail::DocumentRuns().rows_of(1).empty());
  CHECK(runs_of({0, -4}).consecutive());
}
