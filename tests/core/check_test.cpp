#include "annulus/core/error.hpp"

#include <array>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "annulus/core/index.hpp"
#include "support/refusal.hpp"

using namespace annulus;

namespace {

struct CountsWrites {
  int* count;

  friend std::ostream& operator<<(std::ostream& out, CountsWrites const& self) {
    ++*self.count;
    return out << "written";
  }
};

}  // namespace

TEST_CASE("message_of writes its parts one after the other", "[core]") {
  CHECK(detail::message_of() == "");
  CHECK(detail::message_of("k has ", Index{7}, " rows, expected ", 12) == "k has 7 rows, expected 12");
  CHECK(detail::message_of(std::string("a"), std::string_view("b"), 'c') == "abc");
  CHECK(detail::message_of(true, " ", false) == "true false");
}

TEST_CASE("message_of writes lists in brackets", "[core]") {
  CHECK(detail::message_of(std::vector<Index>{1, -2, 3}) == "[1, -2, 3]");
  CHECK(detail::message_of(std::vector<int>{}) == "[]");
  CHECK(detail::message_of(std::array<Index, 4>{2, 0, 4, 8}) == "[2, 0, 4, 8]");
  CHECK(detail::message_of(std::vector<bool>{true, false}) == "[true, false]");
}

TEST_CASE("message_of writes floating-point numbers with all their digits", "[core]") {
  double const third = 1.0 / 3.0;
  CHECK(std::stod(detail::message_of(third)) == third);
  CHECK(detail::message_of(0.5) == "0.5");
}

TEST_CASE("check throws the requested error with the message, only if the condition fails", "[core]") {
  CHECK_NOTHROW(detail::check<ShapeError>(true, "never seen"));
  annulus_test::check_refused(
      {{"shape", "ShapeError", "x is 3", [] { detail::check<ShapeError>(false, "x is ", 3); }},
       {"unsupported", "UnsupportedError", "no x", [] { detail::check<UnsupportedError>(false, "no x"); }},
       {"communication", "CommunicationError", "late", [] { detail::check<CommunicationError>(false, "late"); }}});
}

TEST_CASE("the message is not built if the condition holds", "[core]") {
  int written = 0;
  detail::check<Error>(true, CountsWrites{&written});
  CHECK(written == 0);
  CHECK_THROWS_WITH(detail::check<Error>(false, CountsWrites{&written}), "written");
  CHECK(written == 1);
}

TEST_CASE("every error of the library can be caught as Error", "[core]") {
  STATIC_REQUIRE(std::is_base_of_v<std::runtime_error, Error>);
  STATIC_REQUIRE(std::is_base_of_v<Error, ShapeError>);
  STATIC_REQUIRE(std::is_base_of_v<Error, UnsupportedError>);
  STATIC_REQUIRE(std::is_base_of_v<Error, CommunicationError>);
  STATIC_REQUIRE_FALSE(std::is_base_of_v<ShapeError, UnsupportedError>);
}

TEST_CASE("a communication error names rank, step and neighbour", "[core]") {
  CommunicationError const full("late", 2, 5, 1);
  CHECK(std::string(full.what()) == "late");
  CHECK(full.rank() == 2);
  CHECK(full.step() == 5);
  CHECK(full.neighbour() == 1);
  CommunicationError const bare("late");
  CHECK(bare.rank() == CommunicationError::unknown);
  CHECK(bare.step() == CommunicationError::unknown);
  CHECK(bare.neighbour() == CommunicationError::unknown);
}
