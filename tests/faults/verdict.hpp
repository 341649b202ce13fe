#pragma once
// Verdicts on the runs of a fault matrix: the expected effects of a fault, compared with the reports of the ranks.

#include <algorithm>
#include <map>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "faults/training_run.hpp"

namespace annulus_test {

/// Expected effect of a fault: all ranks throw; all throw or results are right; results may be wrong; none.
enum class Visibility { seen, seen_or_harmless, unseen, no_effect };

inline Visibility visibility_of(FaultKind kind, bool checked) {
  switch (kind) {
    case FaultKind::none:
    case FaultKind::delay:
      return Visibility::no_effect;
    case FaultKind::flip:
      return checked ? Visibility::seen : Visibility::unseen;
    case FaultKind::stale:
    case FaultKind::duplicate:
      return checked ? Visibility::seen_or_harmless : Visibility::unseen;
    // Without the call number in the checks, a call may pair with a later one, until calls run out.
    case FaultKind::skip:
      return checked ? Visibility::seen : Visibility::unseen;
    default:
      return Visibility::seen;
  }
}

/// Complaints about the runs of a matrix, by kind of fault, with the first two examples of each.
class Verdicts {
 public:
  /// hung: the run ended only because the test ended it.
  void judge(Scenario const& scenario, std::vector<RankReport> const& ranks, bool hung) {
    ++runs_;
    if (hung) return complain(scenario, "hangs", "");
    Fault const& fault = scenario.fault;
    Visibility const visibility = visibility_of(fault.kind, scenario.checked);
    auto const threw = [](RankReport const& report) { return report.end != RankReport::returned; };
    bool const any_threw = std::any_of(ranks.begin(), ranks.end(), threw);
    if (visibility == Visibility::no_effect && any_threw)
      complain(scenario, "a fault without effect is seen", text_of(ranks));
    if (visibility == Visibility::seen && !any_threw) complain(scenario, "is not seen", "");
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      RankReport const& report = ranks[r];
      bool const is_culprit = static_cast<annulus::Rank>(r) == fault.culprit;
      std::string const who = annulus::detail::message_of("rank ", r, ": ", report.text.data());
      if (!report.right && visibility != Visibility::unseen) complain(scenario, "wrong results", who);
      if (report.end == RankReport::other_exception) complain(scenario, "another exception", who);
      bool const stands_still = is_culprit && (fault.kind == FaultKind::stop || fault.kind == FaultKind::die);
      double const limit = std::chrono::duration<double>(scenario.deadline).count() + 1;
      if (!stands_still && report.seconds > limit)
        complain(scenario, "ends late", annulus::detail::message_of("rank ", r, " after ", report.seconds, " s"));
      if (!any_threw) continue;
      // A rank that omits its last calls makes no call that could throw.
      bool const has_no_more_calls = is_culprit && (fault.kind == FaultKind::leave || fault.kind == FaultKind::skip);
      if (!threw(report) && visibility != Visibility::unseen && !has_no_more_calls)
        complain(scenario, "not all ranks throw",
                 annulus::detail::message_of("rank ", r, " returns, ", text_of(ranks)));
      if (report.end != RankReport::communication_error) continue;
      if (visibility == Visibility::unseen) continue;
      // If ranks differ in the number of a call or the size of a record, the one that differs from all others is wrong:
      // of two ranks it may be either, and the wrong rank itself sees all others differ.
      bool const is_difference =
          fault.kind == FaultKind::skip || (fault.kind == FaultKind::truncate && fault.place == Place::all_gather);
      bool const can_be_known = !is_difference || (scenario.ranks > 2 && !is_culprit);
      if (report.neighbour != fault.culprit && can_be_known)
        complain(scenario, is_culprit ? "the culprit names another rank" : "names another rank",
                 annulus::detail::message_of("neighbour ", report.neighbour, ", ", who));
      if (std::string(report.text.data()).find(annulus::detail::message_of("rank ", fault.culprit)) ==
          std::string::npos)
        complain(scenario,
                 is_culprit ? "the text of the culprit does not name it" : "the text does not name the culprit", who);
    }
  }

  void complain(Scenario const& scenario, std::string const& complaint, std::string const& detail) {
    auto& [count, examples] = complaints_[{std::string(name_of(scenario.fault.kind)), complaint}];
    if (++count <= 2) examples.push_back(scenario.text() + ": " + detail);
  }

  int runs() const { return runs_; }
  bool all_right() const { return complaints_.empty(); }

  std::string text() const {
    std::ostringstream all;
    all << runs_ << " runs\n";
    for (auto const& [what, seen] : complaints_) {
      all << what.first << ": " << what.second << ": " << seen.first << '\n';
      for (std::string const& example : seen.second) all << "    " << example << '\n';
    }
    return all.str();
  }

 private:
  static std::string text_of(std::vector<RankReport> const& ranks) {
    for (RankReport const& report : ranks)
      if (report.end != RankReport::returned) return report.text.data();
    return {};
  }

  int runs_ = 0;
  std::map<std::pair<std::string, std::string>, std::pair<int, std::vector<std::string>>> complaints_;
};

}  // namespace annulus_test
