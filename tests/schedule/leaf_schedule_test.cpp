// The leaf schedule of all ranks, executed with texts in place of partial results: the text of a result says in which
// order it was joined.

#include "annulus/schedule/leaf_schedule.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"
#include "support/catch.hpp"
#include "support/reproducible_problem.hpp"

using namespace annulus;
using annulus::detail::LeafGrid;
using annulus::detail::LeafNode;
using annulus::detail::LeafSchedule;
using annulus::detail::LeafSums;
using annulus::detail::LeafWalk;
using annulus::detail::PairPlaces;
using annulus_test::Deal;

namespace {

using Results = std::map<std::pair<Side, Index>, std::string>;

enum class Fault { none, joins_on_arrival, swaps_operands };

/// The joins that the fixed tree makes for a leaf, from its definition.
std::string tree_of(LeafGrid const& grid, Side side, Index leaf, LeafNode node) {
  if (!grid.any_visible(side, leaf, node)) return "";
  if (node.level == 0) return std::to_string(node.begin);
  Index const half = Index{1} << (node.level - 1);
  std::string const lower = tree_of(grid, side, leaf, {node.begin, node.level - 1}),
                    upper = tree_of(grid, side, leaf, {node.begin + half, node.level - 1});
  if (lower.empty() || upper.empty()) return lower + upper;
  return "(" + lower + " " + upper + ")";
}

/// One rank, with texts in its places.
struct TextRank {
  LeafSchedule const& schedule;
  Fault fault;
  LeafWalk walk{};
  std::map<std::pair<LeafSums, Index>, std::string> places{};
  std::map<std::pair<Index, Index>, std::string> sent{};  ///< [leaf, node]
  std::map<std::pair<Index, Index>, std::string> const* received = nullptr;
  Results results{};
  std::map<Index, std::string> arrived{};

  void fold(Index resident, Index rotating, PairPlaces to) {
    if (to.resident >= 0) places[{LeafSums::resident, to.resident}] = std::to_string(rotating);
    if (to.rotating >= 0) places[{LeafSums::rotating, to.rotating}] = std::to_string(resident);
  }
  void join(LeafSums sums, Index, Index into, Index from) {
    REQUIRE(into != from);
    std::string &lower = places.at({sums, into}), &upper = places.at({sums, from});
    if (fault == Fault::swaps_operands) std::swap(lower, upper);
    lower = "(" + lower + " " + upper + ")";
    places.erase({sums, from});
  }
  void send(Index leaf, Index node, Index place) { sent[{leaf, node}] = places.at({LeafSums::rotating, place}); }
  void send_none(Index leaf, Index node) { REQUIRE(!sent.count({leaf, node})); }
  void receive(Index leaf, Index node, Index place) {
    places[{LeafSums::rotating, place}] = received->at({leaf, node});
    if (fault == Fault::joins_on_arrival) {
      std::string& all = arrived[leaf];
      all = all.empty() ? received->at({leaf, node}) : "(" + all + " " + received->at({leaf, node}) + ")";
    }
  }
  void clear(LeafSums sums, Index, Index place) { places[{sums, place}] = ""; }
  void finish(LeafSums sums, Index leaf, Index place) {
    std::string text = places.at({sums, place});
    if (sums == LeafSums::rotating && !arrived[leaf].empty()) text = arrived[leaf];
    results[{schedule.side(sums), leaf}] = text;
  }
};

/// The results of all ranks.
Results run(RingPlan const& plan, Fault fault) {
  LeafSchedule const& schedule = *plan.transport().leaves;
  std::vector<TextRank> ranks;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    ranks.push_back({schedule, fault});
    ranks.back().walk.begin(schedule, rank);
  }
  auto const receive = [&](int step) {
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      TextRank& here = ranks[static_cast<std::size_t>(rank)];
      here.received = &ranks[static_cast<std::size_t>(schedule.visitor(rank, step))].sent;
      here.walk.receive(step, here);
    }
    for (TextRank& rank : ranks) rank.sent.clear();
  };
  bool const sends = schedule.sums(LeafSums::rotating) && plan.steps() > 1;
  for (int step = 0; step < plan.steps(); ++step) {
    // Results of a step are sent while the next one computes; here they arrive before it.
    if (sends && step > 1) receive(step - 1);
    for (TextRank& rank : ranks) rank.walk.compute(step, rank);
  }
  if (sends) receive(plan.steps() - 1);
  Results all;
  for (TextRank& rank : ranks) {
    rank.walk.finish(rank);
    all.insert(rank.results.begin(), rank.results.end());
  }
  return all;
}

Results expected(RingPlan const& plan) {
  LeafSchedule const& schedule = *plan.transport().leaves;
  Results all;
  for (LeafSums const sums : {LeafSums::resident, LeafSums::rotating}) {
    if (!schedule.sums(sums)) continue;
    Side const side = schedule.side(sums), other = side == Side::query ? Side::key : Side::query;
    for (Index leaf = 0; leaf < schedule.grid().count(side); ++leaf)
      all[{side, leaf}] = tree_of(schedule.grid(), side, leaf, {0, schedule.grid().root_level(other)});
  }
  return all;
}

PlanRequest request_on(int ranks, Deal deal, Index leaf, Index queries, Index keys, std::uint64_t seed) {
  annulus_test::RandomChoice choose(seed);
  PlanRequest request;
  request.sharding = ExplicitMap{annulus_test::dealt_positions(deal, ranks, queries, leaf, choose),
                                 annulus_test::dealt_positions(deal, ranks, keys, leaf, choose)};
  request.rules = {.reproducible = true, .reproducible_leaf = leaf};
  request.query_lengths = request.sharding.lengths(Side::query, ranks, queries);
  request.key_lengths = request.sharding.lengths(Side::key, ranks, keys);
  return request;
}

template <class Function>
void for_each_plan(Function&& function) {
  std::uint64_t seed = 0;
  for (int ranks : annulus_test::reproducible_ranks)
    for (Deal deal : {Deal::contiguous, Deal::zigzag, Deal::shuffled})
      for (Mask const& mask : {full(), causal(), sliding_window(7, 2), Mask{.chunk = 9}})
        for (Rotation rotation : {Rotation::keys, Rotation::queries})
          for (Pass pass : {Pass::forward, Pass::backward}) {
            ++seed;
            Index const length = 1 + static_cast<Index>(seed * 7 % 61);
            PlanRequest request = request_on(ranks, deal, 1 + static_cast<Index>(seed % 4), length, length, seed);
            request.pass = pass;
            request.rotation = rotation;
            request.rules.mask = mask;
            CAPTURE(ranks, static_cast<int>(deal), length, seed);
            function(RingPlan(request));
          }
}

}  // namespace

TEST_CASE("every result of a leaf schedule is joined in the fixed tree", "[schedule][reproducible]") {
  for_each_plan([](RingPlan const& plan) { CHECK(run(plan, Fault::none) == expected(plan)); });
}

TEST_CASE("joins in another order than that of the tree are found", "[schedule][reproducible]") {
  for (Fault fault : {Fault::joins_on_arrival, Fault::swaps_operands}) {
    int found = 0;
    for_each_plan([&](RingPlan const& plan) { found += run(plan, fault) != expected(plan); });
    CHECK(found > 20);
  }
}

TEST_CASE("places of a contiguous sharding grow with the logarithm of the leaves", "[schedule][reproducible]") {
  for (Index leaves : {Index{16}, Index{64}, Index{256}})
    for (int ranks : {1, 4, 8, 16})
      for (Rotation rotation : {Rotation::keys, Rotation::queries})
        for (Pass pass : {Pass::forward, Pass::backward}) {
          PlanRequest request{.pass = pass,
                              .query_lengths = std::vector<Index>(static_cast<std::size_t>(ranks), 2 * leaves / ranks),
                              .key_lengths = std::vector<Index>(static_cast<std::size_t>(ranks), 2 * leaves / ranks),
                              .rules = {.reproducible = true, .reproducible_leaf = 2},
                              .rotation = rotation};
          RingPlan const plan(request);
          LeafSchedule const& schedule = *plan.transport().leaves;
          Index levels = 0;
          while ((Index{1} << levels) < leaves) ++levels;
          CAPTURE(leaves, ranks);
          CHECK(schedule.nodes_sent() == 1);
          for (Rank rank = 0; rank < ranks; ++rank)
            for (LeafSums const sums : {LeafSums::resident, LeafSums::rotating}) {
              // Each place holds a leaf of 2 rows, each rank leaves / ranks of them.
              Index const places = schedule.place_rows(rank, sums) / 2, own = leaves / ranks;
              CHECK(places <= own * std::max(Index{2}, 2 * levels) + levels);
              if (ranks == 1) CHECK(places <= 2 * own + 1 + (pass == Pass::forward ? levels : 0));
            }
        }
}

TEST_CASE("leaves of a side are limited in number", "[schedule][reproducible]") {
  auto const plan = [](Index length) {
    return RingPlan(
        {.query_lengths = {4}, .key_lengths = {length}, .rules = {.reproducible = true, .reproducible_leaf = 2}});
  };
  CHECK_NOTHROW(plan(2 * LeafGrid::most_leaves));
  CHECK_THROWS_WITH(plan(2 * LeafGrid::most_leaves + 1),
                    "reproducible: 8193 key positions are 4097 leaves of reproducible_leaf = 2 positions; accepted: at "
                    "most 4096 leaves");
}
