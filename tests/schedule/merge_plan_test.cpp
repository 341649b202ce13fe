#include "annulus/schedule/merge_plan.hpp"

#include <limits>
#include <numeric>
#include <vector>

#include "support/refusal.hpp"

using namespace annulus;

TEST_CASE("a merge plan merges every rank once, into rank 0", "[schedule][merge]") {
  for (int ranks = 1; ranks <= 40; ++ranks) {
    MergePlan const plan(ranks, 8);
    std::vector<int> merged(static_cast<std::size_t>(ranks), 1);
    plan.for_each_merge([&](Rank into, Rank from) {
      CHECK(into < from);
      merged[static_cast<std::size_t>(into)] += merged[static_cast<std::size_t>(from)];
      merged[static_cast<std::size_t>(from)] = 0;
    });
    CHECK(merged[0] == ranks);
    CHECK(std::accumulate(merged.begin(), merged.end(), 0) == ranks);
  }
}

TEST_CASE("rounds and bytes of a merge", "[schedule][merge]") {
  auto const tree = [](int ranks) { return MergePlan(ranks, 100, MergeMethod::tree); };
  CHECK(tree(1).rounds() == 0);
  CHECK(tree(2).rounds() == 1);
  CHECK(tree(3).rounds() == 3);
  CHECK(tree(8).rounds() == 3);
  CHECK(tree(64).rounds() == 6);
  CHECK(tree(65).rounds() == 8);
  CHECK(tree(1).bytes_sent(0) == 0);
  CHECK(tree(8).bytes_sent(5) == 300);
  CHECK(tree(6).bytes_sent(0) == 300);
  CHECK(tree(6).bytes_sent(2) == 200);
  CHECK(tree(6).bytes_sent(5) == 100);
  MergePlan const gather(6, 100, MergeMethod::gather);
  CHECK(gather.rounds() == 1);
  CHECK(gather.bytes_sent(3) == 500);
}

TEST_CASE("automatic takes the faster method by the rates of the link", "[schedule][merge]") {
  LinkRates const slow_start{.latency = 1e-3, .bandwidth = 1e9}, narrow{.latency = 1e-6, .bandwidth = 1e6};
  CHECK(MergePlan(8, 1000, MergeMethod::automatic, slow_start).method() == MergeMethod::gather);
  CHECK(MergePlan(8, 1000, MergeMethod::automatic, narrow).method() == MergeMethod::tree);
  MergePlan const plan(8, 1000, MergeMethod::automatic, {.latency = 2, .bandwidth = 500});
  CHECK(plan.seconds(MergeMethod::tree) == Approx(3 * (2 + 2.0)));
  CHECK(plan.seconds(MergeMethod::gather) == Approx(2 + 7 * 2.0));
  CHECK(plan.method() == MergeMethod::tree);
}

TEST_CASE("a merge plan refuses rates that are no rates", "[schedule][merge]") {
  auto const planned = [](LinkRates const& link) { return [link] { MergePlan(2, 8, MergeMethod::automatic, link); }; };
  double const nan = std::numeric_limits<double>::quiet_NaN();
  annulus_test::check_refused({{"no bandwidth", "UnsupportedError", "bandwidth is 0", planned({.bandwidth = 0})},
                               {"negative", "UnsupportedError", "bandwidth is -1", planned({.bandwidth = -1})},
                               {"no number", "UnsupportedError", "bandwidth is nan", planned({.bandwidth = nan})},
                               {"latency", "UnsupportedError", "latency is -1", planned({.latency = -1})}});
}
