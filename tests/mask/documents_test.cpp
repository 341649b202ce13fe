#include "annulus/mask/documents.hpp"

#include <vector>

#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("documents of lengths stand one after another", "[mask]") {
  std::vector<Index> const lengths{3, 0, 2};
  CHECK(documents_of_lengths(lengths) == Documents{{0, 3}, {3, 3}, {3, 5}});
  CHECK(documents_of_lengths({}).empty());
  std::vector<Index> const negative{4, -1};
  CHECK_THROWS_WITH(documents_of_lengths(negative), "a document has length -1; a length must not be negative");
}

TEST_CASE("documents of ids are the runs of equal positive ids", "[mask]") {
  std::vector<std::int32_t> const ids{0, 7, 7, -1, -1, 2, 7, 7, 7};
  CHECK(documents_of_ids(ids) == Documents{{1, 3}, {5, 6}, {6, 9}});
  CHECK(documents_of_ids({}).empty());
}
