#include "annulus/core/index.hpp"

#include <limits>

#include "support/catch.hpp"

using annulus::Index;
using annulus::detail::ceil_divide;
using annulus::detail::floor_divide;

namespace {

constexpr Index largest = std::numeric_limits<Index>::max();
constexpr Index smallest = std::numeric_limits<Index>::min();

}  // namespace

static_assert(floor_divide(-1, 4) == -1 && ceil_divide(-1, 4) == 0);

TEST_CASE("floor and ceil division match their definition around zero", "[core]") {
  for (Index b = 1; b <= 9; ++b)
    for (Index a = -40; a <= 40; ++a) {
      CAPTURE(a, b);
      Index const floor = floor_divide(a, b), ceil = ceil_divide(a, b);
      CHECK((floor * b <= a && a < (floor + 1) * b));
      CHECK(((ceil - 1) * b < a && a <= ceil * b));
      CHECK(ceil - floor == (a % b == 0 ? 0 : 1));
    }
}

TEST_CASE("division does not overflow at the ends of the range", "[core]") {
  CHECK(floor_divide(largest, 1) == largest);
  CHECK(floor_divide(smallest, 1) == smallest);
  CHECK(ceil_divide(largest, largest) == 1);
  CHECK(ceil_divide(largest, 2) == largest / 2 + 1);
  CHECK(floor_divide(-2, largest) == -1);
  CHECK(ceil_divide(-2, largest) == 0);
  CHECK(floor_divide(smallest, largest) == -2);
  CHECK(ceil_divide(smallest, largest) == -1);
}

TEST_CASE("sums and products saturate at both ends of the range", "[core]") {
  using annulus::detail::saturating_product;
  using annulus::detail::saturating_sum;
  CHECK((saturating_sum(3, -5) == -2 && saturating_product(3, -5) == -15));
  CHECK((saturating_sum(largest, 1) == largest && saturating_sum(smallest, -1) == smallest));
  CHECK(saturating_sum(largest, smallest) == -1);
  CHECK((saturating_product(largest, 2) == largest && saturating_product(smallest, -1) == largest));
  CHECK((saturating_product(largest, -2) == smallest && saturating_product(smallest, 2) == smallest));
  CHECK((saturating_product(smallest, 0) == 0 && saturating_product(Index{1} << 32, Index{1} << 32) == largest));
}

TEST_CASE("places beyond both ends of the ring wrap around", "[core]") {
  for (int place : {-8, -4, 0, 4, 8}) CHECK(annulus::detail::rank_at(place + 3, 4) == 3);
}
