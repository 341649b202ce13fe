// The checker of calls on a cache: lists of random calls have no fault, and planted faults are found.

#include "annulus/schedule/check_cache.hpp"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "annulus/schedule/cache_actions.hpp"
#include "schedule/planted_actions.hpp"
#include "support/catch.hpp"
#include "support/random_ring_problem.hpp"

using namespace annulus;
using annulus::detail::checker::CacheChecker;
using annulus_test::PlantedActions;
using annulus_test::RandomChoice;
using Catch::Matchers::ContainsSubstring;

namespace check_cache_test {
namespace {

PlanRequest request_of(bool checked = false, bool document_ids = false, bool reproducible = false) {
  PlanRequest request;
  request.shape = {.query_heads = 2, .kv_heads = 2, .head_dim = 4, .value_dim = 3};
  request.checked = checked;
  request.document_ids = document_ids;
  request.rules.reproducible = reproducible;
  return request;
}

/// Of partial results where the call is reproducible.
detail::CacheNodes nodes_of(PlanRequest const& request) {
  return request.rules.reproducible ? detail::CacheNodes{4, 3, 2} : detail::CacheNodes();
}

/// A call on a cache by all ranks.
struct Call {
  PlanRequest request;
  std::vector<ActionList> lists;
  std::function<void(CacheChecker&)> expect;

  std::string fault(std::vector<ActionList> const& checked) const {
    CacheChecker checker(request, checked);
    expect(checker);
    return checker.find_fault().value_or("none");
  }
};

template <class Make>
std::vector<ActionList> lists_of(int ranks, Make const& make) {
  std::vector<ActionList> lists(static_cast<std::size_t>(ranks));
  for (Rank rank = 0; rank < ranks; ++rank) make(lists[static_cast<std::size_t>(rank)], rank);
  return lists;
}
Call prefill(PlanRequest const& request, std::vector<Index> const& lengths) {
  auto const make = [&](ActionList& list, Rank rank) {
    detail::prefill_actions(list, request, lengths, rank, nodes_of(request));
  };
  return {request, lists_of(static_cast<int>(lengths.size()), make),
          [=](CacheChecker& checker) { checker.expect_prefill(lengths); }};
}
Call decode(PlanRequest const& request, int ranks, Index queries, MergeMethod method) {
  AttentionShape const& s = request.shape;
  detail::CacheNodes const nodes = nodes_of(request);
  MergePlan const merge(
      ranks, nodes.sent * s.batch * queries * s.query_heads * (s.value_dim + 2) * request.accumulator_bytes, method);
  auto const make = [&](ActionList& list, Rank rank) {
    detail::decode_actions(list, request, queries, merge, rank, nodes);
  };
  return {request, lists_of(ranks, make), [=](CacheChecker& checker) { checker.expect_decode(queries, merge); }};
}
/// moving: rows by source and target.
Call append(PlanRequest const& request, std::vector<std::vector<Index>> const& moving) {
  auto const rows = [moving](Rank source, Rank target) {
    return moving[static_cast<std::size_t>(source)][static_cast<std::size_t>(target)];
  };
  int const ranks = static_cast<int>(moving.size());
  auto const make = [&](ActionList& list, Rank rank) { detail::append_actions(list, request, ranks, rank, rows); };
  return {request, lists_of(ranks, make), [=](CacheChecker& checker) { checker.expect_append(rows); }};
}

void found(Call const& call, std::string const& message, std::function<void(PlantedActions&)> const& plant) {
  REQUIRE(call.fault(call.lists) == "none");
  PlantedActions planted(call.lists);
  plant(planted);
  CHECK_THAT(call.fault(planted.lists()), ContainsSubstring(message));
}

}  // namespace

TEST_CASE("random calls on a cache have no fault", "[schedule]") {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    RandomChoice choose(seed);
    bool const reproducible = choose.one_in(3);
    PlanRequest const request = request_of(choose.one_in(2), choose.one_in(2), reproducible);
    int const ranks = static_cast<int>(choose.between(1, 12));
    auto const some_rows = [&] { return choose.one_in(4) ? 0 : choose.between(0, 5); };
    std::vector<Index> lengths(static_cast<std::size_t>(ranks));
    std::vector<std::vector<Index>> moving(lengths.size(), lengths);
    for (Index& length : lengths) length = some_rows();
    for (auto& targets : moving)
      for (Index& rows : targets) rows = some_rows();
    CAPTURE(seed, ranks);
    for (Call const& call :
         {prefill(request, lengths), append(request, moving), decode(request, ranks, some_rows(), MergeMethod::gather),
          decode(request, ranks, some_rows(), reproducible ? MergeMethod::gather : MergeMethod::tree)})
      REQUIRE(call.fault(call.lists) == "none");
  }
}

TEST_CASE("faults of prefill are found", "[schedule]") {
  Call const call = prefill(request_of(), {2, 0, 3, 1});
  found(call, "have seen 3 rows, expected 4", [](PlantedActions& p) { p.drop<Join>(0, 2); });
  found(call, "have seen 5 rows, expected 4", [](PlantedActions& p) { p.repeat<Join>(2, 1); });
  found(call, "overwrites sums of query 0 that nothing has used", [](PlantedActions& p) { p.drop<Join>(0); });
  found(call, "is finished a second time", [](PlantedActions& p) { p.repeat<Finish>(3); });
  found(call, "sums of query 2 in results 0 have not been used", [](PlantedActions& p) { p.drop<Finish>(2); });
  found(call, "reads rows to which nothing has been written", [](PlantedActions& p) { p.drop<Pack>(0); });
  found(call, "reads rows that have not been awaited",
        [](PlantedActions& p) { std::iter_swap(p.find<Await>(1), p.find<Work>(1, 1)); });
  found(call, "reads query 5, expected query 2", [](PlantedActions& p) { p.what<Work>(3, 1).queries.from.slot = -1; });
  found(call, "rows are sent", [](PlantedActions& p) { ++p.what<Shift>(2).out.rows.begin; });
  found(call, "another rank has started it with hop", [](PlantedActions& p) { --p.what<Shift>(1, 2).hop; });
  found(call, "overwrites rows that are being sent", [](PlantedActions& p) { p.put_before<Work>(2, p.what<Pack>(2)); });
  found(call, "wait for each other",
        [](PlantedActions& p) { p.actions(1).erase(p.find<Shift>(1, 4), p.actions(1).end()); });
}

TEST_CASE("faults of reproducible calls on a cache are found", "[schedule]") {
  Call const chunk = prefill(request_of(false, false, true), {2, 0, 3, 1});
  found(chunk, "have seen 3 rows, expected 4", [](PlantedActions& p) { p.drop<Join>(0, 2); });
  found(chunk, "reads rows to which nothing has been written", [](PlantedActions& p) { p.drop<Copy>(0); });
  Call const row = decode(request_of(false, false, true), 4, 2, MergeMethod::gather);
  found(row, "have seen 5 rows, expected 4", [](PlantedActions& p) { p.repeat<Join>(2, 1); });
  found(row, "reads rows to which nothing has been written", [](PlantedActions& p) { p.drop<Copy>(1); });
}

TEST_CASE("faults of decode by gather are found", "[schedule]") {
  Call const call = decode(request_of(), 5, 2, MergeMethod::gather);
  Call const checked = decode(request_of(true), 5, 2, MergeMethod::gather);
  found(call, "have seen 4 rows, expected 5", [](PlantedActions& p) { p.drop<Join>(1); });
  found(call, "have seen 6 rows, expected 5", [](PlantedActions& p) { p.repeat<Join>(1); });
  found(call, "are not joined in the order of the tree",
        [](PlantedActions& p) { std::iter_swap(p.find<Join>(3), p.find<Join>(3, 1)); });
  found(call, "reads rows that have not been awaited",
        [](PlantedActions& p) { std::iter_swap(p.find<Await>(0), p.find<Join>(0)); });
  found(call, "overwrites rows that are being sent",
        [](PlantedActions& p) { std::iter_swap(p.find<Await>(0, 3), p.find<Join>(0, 3)); });
  found(call, "the checksum is of exchange 4", [](PlantedActions& p) { p.what<Shift>(2).leaving_code = 4; });
  found(checked, "the checksum is of other rows", [](PlantedActions& p) { p.what<Shift>(2).sealed = true; });
  found(checked, "overwrites checksums that are being sent",
        [](PlantedActions& p) { p.what<Shift>(2, 1).sealed = false; });
  found(call, "sums of query 1 in states have not been used", [](PlantedActions& p) {
    Finish& finish = p.what<Finish>(4);
    finish.rows = finish.from.rows = {0, 1};
  });
}

TEST_CASE("faults of decode by tree are found", "[schedule]") {
  Call const call = decode(request_of(), 6, 2, MergeMethod::tree);
  found(call, "overwrites sums of query 0 that nothing has used", [](PlantedActions& p) { p.drop<Join>(1); });
  found(call, "are not joined in the order of the tree", [](PlantedActions& p) {
    Join& join = p.what<Join>(2, 1);
    std::swap(join.into, join.from);
    p.what<Finish>(2).from = join.into;
  });
  found(call, "one of the two ranks sends no rows, or expects none",
        [](PlantedActions& p) { p.what<Shift>(4).out = {}; });
  found(call, "have seen 8 rows, expected 6", [](PlantedActions& p) { p.repeat<Join>(3, 1); });
  found(call, "has not ended when it is started again", [](PlantedActions& p) { p.drop<Await>(2); });
  found(call, "reads rows that have not been awaited",
        [](PlantedActions& p) { std::iter_swap(p.find<Await>(0), p.find<Join>(0)); });
  found(call, "sums of query 0 in states have not been used", [](PlantedActions& p) { p.drop<Finish>(5); });
  found(call, "wait for each other",
        [](PlantedActions& p) { p.actions(5).erase(p.find<Shift>(5, 3), p.actions(5).end()); });
}

TEST_CASE("faults of append are found", "[schedule]") {
  Call const call = append(request_of(), {{1, 2, 2}, {3, 0, 3}, {1, 1, 2}});
  found(call, "rows of results are not finished: 3 of 4", [](PlantedActions& p) { p.drop<Write>(0, 1); });
  found(call, "is finished a second time", [](PlantedActions& p) { p.repeat<Write>(1); });
  found(call, "overwrites rows that are being sent",
        [](PlantedActions& p) { std::iter_swap(p.find<Await>(2), p.find<Pack>(2, 1)); });
  found(call, "reads rows that have not been awaited",
        [](PlantedActions& p) { std::iter_swap(p.find<Await>(0), p.find<Write>(0)); });
  found(call, "reads rows to which nothing has been written", [](PlantedActions& p) { p.drop<Pack>(1); });
  found(call, "writes key 3, expected key 1", [](PlantedActions& p) { p.find<Pack>(0)->step = 1; });
  found(call, "1 rows are sent, 3 are expected", [](PlantedActions& p) { p.what<Shift>(1).out.rows = {0, 1}; });
  found(call, "the rows come from rank 0", [](PlantedActions& p) { p.what<Shift>(1).sender = 1; });
  found(call, "rows [0, 2) of arriving 0, which has 1",
        [](PlantedActions& p) { p.slot(1, SlotKind::arriving).rows = 1; });
  found(call, "no action of a call on a cache", [](PlantedActions& p) { p.put_before<Write>(1, Delta{}); });
}

}  // namespace check_cache_test
