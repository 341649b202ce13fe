// The report of a timeout: the rank to blame, and the text.

#include "annulus/comm/ring_failure.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "annulus/core/error.hpp"
#include "support/catch.hpp"

using namespace annulus;
using annulus::detail::hang_report;
using annulus::detail::RankStatus;
using Catch::Matchers::ContainsSubstring;
using namespace std::chrono_literals;

namespace {

/// `events`: progress of the rank.
RankStatus waits_for(Rank peer, int events = 0) {
  FlightRecord record;
  for (int call = 1; call < 7; ++call) record.begin(Pass::forward, std::nullopt);
  record.begin(Pass::backward, std::nullopt);
  for (int event = 0; event <= events; ++event) record.step(2, 4);
  return RankStatus::of(peer, "carried shift, hop 1", record);
}

RankStatus busy() {
  FlightRecord record;
  record.begin(Pass::backward, std::nullopt);
  record.step(1, 4);
  return RankStatus::of(CommunicationError::unknown, "", record);
}

}  // namespace

TEST_CASE("the rank at the end of the chain of waits holds up the ring", "[comm]") {
  std::vector<RankStatus> const statuses{waits_for(3), waits_for(0), busy(), waits_for(2)};
  for (Rank first : {0, 1, 3}) {
    auto const report = hang_report(statuses, first, 250ms);
    CAPTURE(first, report.text.view());
    CHECK(report.culprit == 2);
    std::string const text(report.text.view());
    CHECK(text.find(detail::message_of("rank ", first, " waited 250 ms for rank ",
                                       statuses[static_cast<std::size_t>(first)].peer,
                                       " (carried shift, hop 1; call 7, backward, step 2)")) == 0);
    CHECK_THAT(text, ContainsSubstring("rank 2 does not wait (last seen ") &&
                         ContainsSubstring("call 1, backward, step 1)") &&
                         ContainsSubstring("rank 2 holds up the ring"));
    for (Rank other = 0; other < 4; ++other)
      if (other != first && other != 2)
        CHECK_THAT(text, ContainsSubstring(detail::message_of("rank ", other, " waits for rank ")));
  }
}

TEST_CASE("ranks that do not answer or have returned are reported as such", "[comm]") {
  CHECK_THAT(std::string(hang_report(std::vector<RankStatus>{waits_for(1), {}}, 0, 1ms).text.view()),
             ContainsSubstring("rank 1 does not answer"));
  RankStatus const returned{.kind = RankStatus::Kind::returned};
  auto const report = hang_report(std::vector<RankStatus>{waits_for(1), waits_for(2), returned}, 0, 1ms);
  CHECK(report.culprit == 2);
  CHECK_THAT(std::string(report.text.view()), ContainsSubstring("rank 2 has returned"));
}

TEST_CASE("in a cycle of waits, the rank with the least progress waits for the rank to blame", "[comm]") {
  for (Rank behind : {1, 2, 3}) {
    std::vector<RankStatus> statuses{waits_for(1, 9), waits_for(2, 9), waits_for(3, 9), waits_for(1, 9)};
    statuses[static_cast<std::size_t>(behind)] = waits_for(behind % 3 + 1, 4);
    for (Rank first : {0, 1, 2, 3}) {
      auto const report = hang_report(statuses, first, 1ms);
      CHECK(report.culprit == behind % 3 + 1);
      CHECK_THAT(std::string(report.text.view()),
                 ContainsSubstring(detail::message_of("a cycle, in which rank ", behind, " is behind: what rank ",
                                                      behind % 3 + 1, " should have sent to it has not arrived")));
    }
  }
}

TEST_CASE("the report of a large ring is short, and names the culprit", "[comm]") {
  std::vector<RankStatus> statuses;
  for (Rank rank = 0; rank < 500; ++rank) statuses.push_back(waits_for(rank + 1));
  statuses.push_back(busy());
  auto const report = hang_report(statuses, 0, 1ms);
  CHECK(report.culprit == 500);
  CHECK_THAT(std::string(report.text.view()), ContainsSubstring("rank 500 holds up the ring"));
}
