// A row has the same bits alone, with few others and with many, whether its keys are read in place or packed.

#include <cstdint>

#include "support/catch.hpp"
#include "support/row_step.hpp"

TEMPLATE_TEST_CASE("decode: a row of a reproducible step has the same bits alone, with few rows and with many", "[cpu]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) CHECK(annulus_test::RowStep<TestType>(seed).complaint() == "");
}
