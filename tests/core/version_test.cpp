#include "annulus/core/version.hpp"

#include <string>

#include "support/catch.hpp"

TEST_CASE("the version has the numbers of its macros") {
  static_assert(!annulus::version().empty());
  REQUIRE(annulus::version() == std::to_string(ANNULUS_VERSION_MAJOR) + '.' + std::to_string(ANNULUS_VERSION_MINOR) +
                                    '.' + std::to_string(ANNULUS_VERSION_PATCH));
  REQUIRE(annulus::version().data()[annulus::version().size()] == 0);
}
