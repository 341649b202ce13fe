#pragma once
// Outcomes of scenarios without their fault, to which those with it are compared.

#include <map>
#include <mutex>
#include <utility>

#include "faults/training_run.hpp"
#include "support/catch.hpp"

namespace annulus_test {

/// Outcomes of scenarios without fault, computed once for all scenarios that share them. run(scenario): one whose
/// `ranks` are the reports of all ranks.
template <auto run>
class FaultlessRuns {
 public:
  using Outcome = decltype(run(Scenario{}));

  Outcome const& of(Scenario const& scenario) {
    auto const key = scenario.faultless_key();
    std::lock_guard const lock(mutex_);
    auto found = runs_.find(key);
    if (found != runs_.end()) return found->second;
    Outcome outcome = run(scenario.without_fault());
    for (RankReport const& report : outcome.ranks) {
      INFO(scenario.text() << ": " << report.text.data());
      REQUIRE(report.end == RankReport::returned);
      REQUIRE(report.counts == outcome.ranks[0].counts);
    }
    return runs_.emplace(key, std::move(outcome)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<decltype(Scenario().faultless_key()), Outcome> runs_;
};

}  // namespace annulus_test
