#include "annulus/comm/flight_record.hpp"

#include <string>

#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("calls are counted, and the position is the call, pass and step of the rank", "[comm]") {
  FlightRecord record;
  CHECK(record.position() == CallPosition{});
  CHECK(record.position().text().view() == "outside a call");
  CHECK(record.begin(Pass::forward, std::nullopt) == 1);
  record.step(2, 4);
  CHECK(record.position() == CallPosition{1, Pass::forward, 2});
  CHECK(record.position().text().view() == "call 1, forward, step 2");
  record.end(false);
  CHECK(record.position() == CallPosition{});
  CHECK(record.begin(Pass::backward, 17) == 2);
  CHECK(record.position() == CallPosition{2, Pass::backward, 0});
}

TEST_CASE("the tail names the last calls, the newest first, and the step that each reached", "[comm]") {
  FlightRecord record;
  CHECK(record.tail().view() == "none");
  record.begin(Pass::forward, std::nullopt);
  record.step(0, 3);
  record.end(false);
  record.begin(Pass::backward, 17);
  CHECK_THAT(std::string(record.tail().view()),
             ContainsSubstring("backward 2 (call 17 of the caller) comparing its arguments") &&
                 ContainsSubstring(", forward 1 done "));
  record.step(1, 3);
  CHECK_THAT(std::string(record.tail().view()), ContainsSubstring("backward 2 (call 17 of the caller) at step 1 of 3"));
  record.end(true);
  CHECK_THAT(std::string(record.tail().view()), ContainsSubstring("backward 2 (call 17 of the caller) failed "));
}

TEST_CASE("a record of many calls shows the last ones", "[comm]") {
  FlightRecord record;
  for (int call = 0; call < 100; ++call) {
    record.begin(Pass::forward, std::nullopt);
    record.end(false);
  }
  std::string const tail(record.tail().view());
  CHECK_THAT(tail, ContainsSubstring("forward 100 done") && ContainsSubstring("forward 98 done"));
  CHECK_THAT(tail, !ContainsSubstring("forward 97"));
}
