#pragma once

// Catch2 2 or 3, whichever is installed. Tests use names that exist in both, as version 3 spells them:
// Approx, Catch::Matchers::WithinRel, Catch::Matchers::ContainsSubstring, GENERATE, TEMPLATE_TEST_CASE.
// Assertions are not thread-safe in either version: ranks that are threads return their results to the test's thread.

#if __has_include(<catch2/catch_test_macros.hpp>)

#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/catch_tostring.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_predicate.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <catch2/matchers/catch_matchers_vector.hpp>

using Catch::Approx;

#else

#include <catch2/catch.hpp>
#include <string>

namespace Catch {

using Detail::Approx;

namespace Matchers {

inline StdString::ContainsMatcher ContainsSubstring(std::string const& text,
                                                    CaseSensitive::Choice case_sensitivity = CaseSensitive::Yes) {
  return Contains(text, case_sensitivity);
}

}  // namespace Matchers
}  // namespace Catch

#endif
