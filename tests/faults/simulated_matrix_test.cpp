// Fault matrix on simulated rings: every kind of fault x place x rank, 2 to 5 ranks, with and without zero-copy
// exchange. Within the deadline and a second every rank has ended; ranks that throw name the culprit in neighbour() and
// in the text; no call that returns has wrong results; a new ring works; no memory is leaked.
//
// fault        with checks                                  without
// drop         all throw at the deadline                    the same
// delay        no effect                                    no effect
// stale        all throw, or the bytes were the same        may give wrong results
// duplicate    all throw, or the bytes were the same        may give wrong results
// truncate     all throw: the communicator sees the length  the same
// flip         all throw                                    may give wrong results
// fail         all throw, the culprit its own exception     the same
// no memory    all throw, the culprit bad_alloc             the same
// stop, die    all throw at the deadline                    the same
// skip         all throw in the next call: its number       may be taken for the next call, until calls run out
// leave        all others throw in the next call            the same

#include <atomic>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "faults/faultless_runs.hpp"
#include "faults/scenarios.hpp"
#include "faults/verdict.hpp"
#include "faults/watched_ring.hpp"
#include "support/allocation_counts.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::Rank;
using annulus::ZeroCopy;

namespace {

struct Outcome {
  std::vector<RankReport> ranks;
  std::vector<Results> results;
  bool hung = false;
};

Outcome run(Scenario const& scenario, std::vector<Results> const* expected) {
  Outcome outcome;
  outcome.results.resize(static_cast<std::size_t>(scenario.ranks));
  annulus::SimulatedRingOptions const options{.zero_copy = scenario.zero_copy, .timeout = scenario.deadline};
  // A rank with fault `stop` sleeps for twice the deadline.
  std::tie(outcome.ranks, outcome.hung) =
      run_watched(scenario.ranks, options, 3 * scenario.deadline + std::chrono::seconds(5),
                  [&](annulus::SimulatedRing& ring, LivingRanks& living) {
                    auto const rank = static_cast<std::size_t>(ring.rank());
                    RunContext context{.die = [&] { living.wait_until_ended(scenario.ranks - 1); }};
                    if (expected)
                      context.expected = &(*expected)[rank];
                    else
                      context.obtained = &outcome.results[rank];
                    return run_training(ring, scenario, context);
                  });
  return outcome;
}

Outcome run_faultless(Scenario const& scenario) { return run(scenario, nullptr); }

using Faultless = FaultlessRuns<run_faultless>;

std::vector<Scenario> every_scenario(Faultless& faultless) {
  std::vector<Scenario> all;
  for (int ranks = 2; ranks <= 5; ++ranks)
    for (ZeroCopy zero_copy : {ZeroCopy::never, ZeroCopy::automatic}) {
      auto const some =
          scenarios_of(ranks, zero_copy, [&](Scenario const& s) { return faultless.of(s).ranks[0].counts; });
      all.insert(all.end(), some.begin(), some.end());
    }
  return all;
}

/// Runs the scenarios, more at a time if they wait for deadlines, and after each one a run without fault.
void check(std::vector<Scenario> const& scenarios, Faultless& faultless) {
  Verdicts verdicts;
  std::mutex mutex;
  auto const run_those = [&](bool by_deadline, int at_a_time) {
    std::atomic<std::size_t> next{0};
    std::vector<std::jthread> threads;
    for (int t = 0; t < at_a_time; ++t)
      threads.emplace_back([&] {
        for (std::size_t i; (i = next++) < scenarios.size();) {
          Scenario const& scenario = scenarios[i];
          if (ends_by_deadline(scenario.fault.kind) != by_deadline) continue;
          Outcome const& expected = faultless.of(scenario);
          Outcome const outcome = run(scenario, &expected.results);
          Outcome const after = run(scenario.without_fault(), &expected.results);
          std::lock_guard const lock(mutex);
          verdicts.judge(scenario, outcome.ranks, outcome.hung);
          for (RankReport const& report : after.ranks)
            if (report.end != RankReport::returned || !report.right)
              verdicts.complain(scenario, "a new ring does not work", report.text.data());
        }
      });
  };
  for (Scenario const& scenario : scenarios) faultless.of(scenario);
  long const before = live_allocations;
  run_those(false, 2);
  run_those(true, 16);  // these sleep most of the time
  long const leaked = live_allocations - before;
  std::string const text = verdicts.text();
  INFO(text);
  CHECK(verdicts.all_right());
  CHECK(verdicts.runs() == static_cast<int>(scenarios.size()));
  if (verdicts.all_right()) CHECK(leaked == 0);
}

}  // namespace

TEST_CASE("a sample of the faults of a simulated ring", "[faults]") {
  Faultless faultless;
  auto const all = every_scenario(faultless);
  check(sample_of(all, all.size() / 300 | 1), faultless);
}

TEST_CASE("a sample of the faults of reproducible passes", "[faults]") {
  Faultless faultless;
  auto all = every_scenario(faultless);
  std::erase_if(all, [](Scenario const& scenario) { return !scenario.reproducible; });
  CHECK(all.size() >= 1000);
  check(sample_of(all, all.size() / 200 | 1), faultless);
}

TEST_CASE("a sample of the faults of serving", "[faults]") {
  Faultless faultless;
  auto all = every_scenario(faultless);
  std::erase_if(all, [](Scenario const& scenario) { return !scenario.serving; });
  CHECK(all.size() >= 1000);
  check(sample_of(all, all.size() / 200 | 1), faultless);
}

TEST_CASE("a sample of the faults in schedules in which ranks form groups", "[faults][schedules]") {
  Faultless faultless;
  auto all = every_scenario(faultless);
  std::erase_if(all, [](Scenario const& scenario) { return !annulus::has_groups(scenario.schedule); });
  CHECK(all.size() >= 1000);
  check(sample_of(all, all.size() / 300 | 1), faultless);
}

TEST_CASE("a sample of the faults in both directions", "[faults]") {
  Faultless faultless;
  auto all = every_scenario(faultless);
  std::erase_if(all, [](Scenario const& one) { return one.schedule != annulus::Schedule::both_directions; });
  CHECK(all.size() >= 1000);
  check(sample_of(all, all.size() / 200 | 1), faultless);
}

TEST_CASE("a call record that arrives again instead of the next one is blamed on its rank", "[faults]") {
  Faultless faultless;
  std::vector<Scenario> repeated;
  for (Scenario const& scenario : every_scenario(faultless))
    if (scenario.fault.kind == FaultKind::stale && scenario.fault.place == Place::all_gather && scenario.checked)
      repeated.push_back(scenario);
  CHECK(repeated.size() >= 100);
  check(repeated, faultless);
}

TEST_CASE("every fault of a simulated ring", "[faults][.long]") {
  Faultless faultless;
  auto const all = every_scenario(faultless);
  CHECK(all.size() >= 5000);
  check(all, faultless);
}
