#include "annulus/core/error.hpp"

#include <limits>
#include <string>
#include <type_traits>

#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("strings and numbers are concatenated", "[core]") {
  detail::FixedText<64> text("rank ", 3, " waited ", 1.5, " s");
  text.add(", ", std::string_view("then "), -7L, " more");
  CHECK(text.view() == "rank 3 waited 1.5 s, then -7 more");
  CHECK(std::string(text.c_str()) == text.view());
  CHECK(!text.empty());
  text.clear();
  CHECK(text.empty());
  CHECK(text == detail::FixedText<64>());
}

TEST_CASE("excess characters are dropped, and the text is null-terminated", "[core]") {
  detail::FixedText<5> text("abc");
  text.add("defg");
  CHECK(text.view() == "abcde");
  text.add("h", 1);
  CHECK(text.view() == "abcde");
  CHECK(detail::FixedText<0>("a").view() == "");
  CHECK(detail::FixedText<3>(123456).view() == "123");
}

TEST_CASE("extreme numbers are written in full", "[core]") {
  detail::FixedText<200> const text(
      std::numeric_limits<long long>::min(), " ", std::numeric_limits<unsigned long long>::max(), " ",
      -std::numeric_limits<double>::denorm_min(), " ", std::numeric_limits<double>::max());
  CHECK(text.view() == "-9223372036854775808 18446744073709551615 -4.9406564584124654e-324 1.7976931348623157e+308");
  static_assert(std::is_trivially_copyable_v<detail::FixedText<200>>);
}
