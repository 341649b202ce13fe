// The text of lists of actions.

#include "annulus/schedule/print_actions.hpp"

#include <sstream>
#include <string>

#include "annulus/schedule/pass_actions.hpp"
#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

namespace print_actions_test {
namespace {

std::string printed(PlanRequest const& request, Rank rank = 0) {
  std::ostringstream out;
  print_actions(out, RingPlan(request), rank);
  return out.str();
}
PlanRequest request_of(Pass pass) {
  return {.pass = pass,
          .shape = {.query_heads = 2, .kv_heads = 2, .head_dim = 4, .value_dim = 4},
          .query_lengths = {3, 3},
          .key_lengths = {3, 3},
          .rotation = Rotation::keys};
}

}  // namespace

TEST_CASE("the actions of a small plan are printed as they run", "[schedule]") {
  CHECK(printed(request_of(Pass::forward), 1) ==
        "rank 1 of 2, 6 actions\n"
        "  slot             rows       bytes  parts\n"
        "  rows 0              3         256  k, v\n"
        "  rows 1              3         256  k, v\n"
        "  resident sums       3         256  accumulator, maximum, sum\n"
        "before the steps:\n"
        "  pack       keys [0, 3) into rows 0 [0, 3)\n"
        "step 0:\n"
        "  shift      exchange 0, prefetched: send rows 0 [0, 3) one rank on, receive rows 1 [0, 3) from rank 0\n"
        "  work       queries [0, 3) of rank 1 x keys [0, 3) of rank 1, opens resident sums [0, 3)\n"
        "  await      exchange 0\n"
        "step 1:\n"
        "  work       queries [0, 3) of rank 1 x keys [0, 3) of rank 0 in rows 1 [0, 3), adds to resident sums [0, 3) "
        "and closes it\n"
        "  finish     resident sums [0, 3) to result rows [0, 3)\n");
}

TEST_CASE("every kind of action and slot has its words", "[schedule]") {
  PlanRequest request = request_of(Pass::backward);
  request.zero_copy = true;
  request.joint_keys = 1;
  request.sinks = 1;
  request.wire = Wire::half;
  request.schedule = Schedule::both_directions;
  std::string const windows = printed(request);
  for (char const* words :
       {"k, v; of another rank", "k, v; read by other ranks", "  delta      into delta [0, 3)",
        "take       queries from delta", "  reclaim    rows 0\n", "  open       window ",
        ": show rows 0 [0, 3) one rank on, see rows 2 [0, 3) from rank 1", "  await      exchange 4\n",
        "  release    window ", "x joint keys, adds to", "  copy       rows 2 [0, 3) into widened [0, 3)",
        "  clear      resident sums [0, 3)", "  join       joint gradients [1, 2) into joint gradients [2, 3)",
        "  sink share queries [0, 3) into sink gradients [0, 1)"})
    CHECK_THAT(windows, ContainsSubstring(words));
  request = request_of(Pass::forward);
  request.schedule = Schedule::two_levels;
  request.ranks_per_group = 2;
  request.query_lengths = request.key_lengths = {3, 3, 3, 3};
  std::string const group = printed(request);
  for (char const* words : {"in the group:\n", "of heads 2/2 into leaving 1 [0, 3)", "; in the memory of leaving 0",
                            "await      exchanges", "write      group results 0 [0, 3) to results of heads 1/2"})
    CHECK_THAT(group, ContainsSubstring(words));
}

}  // namespace print_actions_test
