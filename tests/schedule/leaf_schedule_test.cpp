// The leaf schedule of all ranks, executed with texts in place of partial results: the text of a result says in which
// order it was joined.

#include "annulus/schedule/leaf_schedule.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/schedule/ring_plan.hpp"
#include "support/catch.hpp"
#include "support/reproducible_problem.hpp"

using namespace annulus;
using annulus::detail::ActionWriter;
using annulus::detail::LeafGrid;
using annulus::detail::LeafNode;
using annulus::detail::LeafOutput;
using annulus::detail::LeafSchedule;
using annulus::detail::LeafSums;
using annulus::detail::LeafWalk;
using annulus_test::Deal;

namespace {

using Results = std::map<std::pair<Side, Index>, std::string>;

/// By slot and row of a place, or by first row and node of what is sent.
using Texts = std::map<std::pair<Index, Index>, std::string>;

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

/// One rank, which performs the actions of its walk on texts in place of rows.
class TextRank {
 public:
  TextRank(LeafSchedule const& schedule, Rank rank, Fault fault) : schedule_(schedule), rank_(rank), fault_(fault) {
    walk_.begin(schedule, rank, nullptr, {resident, rotating});
  }
  TextRank(TextRank&&) = delete;

  void compute(int step) {
    perform([&](ActionWriter& writer) { walk_.compute(step, output(writer)); });
  }
  /// sent: what the visitor has sent after the step.
  void receive(int step, Texts const& sent) {
    received_ = &sent;
    perform([&](ActionWriter& writer) { walk_.receive(step, output(writer)); });
  }
  Results finish() {
    perform([&](ActionWriter& writer) { walk_.finish(&writer); });
    return results_;
  }
  Texts take_sent() { return std::exchange(sent_, {}); }

  void operator()(Work const& work) {
    if (work.query_sums.slot >= 0) texts_[place_of(work.query_sums)] = std::to_string(work.keys.leaf);
    if (work.key_sums.slot >= 0) texts_[place_of(work.key_sums)] = std::to_string(work.queries.leaf);
  }
  void operator()(Join const& join) {
    REQUIRE(place_of(join.into) != place_of(join.from));
    std::string &lower = texts_.at(place_of(join.into)), &upper = texts_.at(place_of(join.from));
    if (fault_ == Fault::swaps_operands) std::swap(lower, upper);
    lower = "(" + lower + " " + upper + ")";
    texts_.erase(place_of(join.from));
  }
  void operator()(Copy const& copy) {
    if (copy.into.slot == travelling) {
      sent_[node_of(copy.into)] = texts_.at(place_of(copy.from));
      return;
    }
    std::string const& text = received_->at(node_of(copy.from));
    texts_[place_of(copy.into)] = text;
    if (fault_ == Fault::joins_on_arrival) {
      std::string& all = arrived_[copy.from.rows.begin];
      all = all.empty() ? text : "(" + all + " " + text + ")";
    }
  }
  void operator()(Clear const& clear) {
    if (clear.rows.slot == travelling)
      REQUIRE(!sent_.count(node_of(clear.rows)));
    else
      texts_[place_of(clear.rows)] = "";
  }
  void operator()(Finish const& finish) {
    std::string text = texts_.at(place_of(finish.from));
    bool const travels = finish.from.slot == rotating;
    if (travels && !arrived_[finish.rows.begin].empty()) text = arrived_[finish.rows.begin];
    Side const side = schedule_.side(travels ? LeafSums::rotating : LeafSums::resident);
    for (Index const leaf : schedule_.grid().of_rank(side, rank_))
      if (schedule_.grid().leaf(side, leaf).local_rows() == finish.rows) results_[{side, leaf}] = text;
  }
  template <class Other>
  void operator()(Other const&) {
    FAIL("no action of leaves");
  }

 private:
  static constexpr int resident = 0, rotating = 1, travelling = 2;  ///< slots

  /// All rows of their owner travel, which are then those of the slot.
  static LeafOutput output(ActionWriter& writer) {
    return {.writer = &writer, .travelling = {travelling, {}}, .held = {0, detail::largest_index}};
  }
  static std::pair<Index, Index> place_of(SlotRows const& rows) { return {rows.slot, rows.rows.begin}; }
  static std::pair<Index, Index> node_of(SlotRows const& rows) { return {rows.rows.begin, rows.node}; }

  template <class Write>
  void perform(Write&& write) {
    ActionList list;
    ActionWriter writer(list, 0);
    write(writer);
    for (Action const& action : list.actions) std::visit(*this, action.what);
  }

  LeafSchedule const& schedule_;
  Rank rank_;
  Fault fault_;
  LeafWalk walk_{};
  Texts texts_{}, sent_{};
  Texts const* received_ = nullptr;
  std::map<Index, std::string> arrived_{};  ///< by the first row of the leaf
  Results results_{};
};

/// The results of all ranks.
Results run(RingPlan const& plan, Fault fault) {
  LeafSchedule const& schedule = *plan.transport().leaves;
  std::deque<TextRank> ranks;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) ranks.emplace_back(schedule, rank, fault);
  auto const receive = [&](int step) {
    std::vector<Texts> sent;
    for (TextRank& rank : ranks) sent.push_back(rank.take_sent());
    for (Rank rank = 0; rank < plan.ranks(); ++rank)
      ranks[static_cast<std::size_t>(rank)].receive(step, sent[static_cast<std::size_t>(schedule.visitor(rank, step))]);
  };
  bool const sends = schedule.sums(LeafSums::rotating) && plan.steps() > 1;
  for (int step = 0; step < plan.steps(); ++step) {
    // Results of a step are sent while the next one computes; here they arrive before it.
    if (sends && step > 1) receive(step - 1);
    for (TextRank& rank : ranks) rank.compute(step);
  }
  if (sends) receive(plan.steps() - 1);
  Results all;
  for (TextRank& rank : ranks) all.merge(rank.finish());
  return all;
}

Results expected(RingPlan const& plan) {
  LeafSchedule const& schedule = *plan.transport().leaves;
  Results all;
  for (LeafSums const sums : {LeafSums::resident, LeafSums::rotating}) {
    if (!schedule.sums(sums)) continue;
    Side const side = schedule.side(sums), other = side == Side::query ? Side::key : Side::query;
    for (Index leaf = 0; leaf < schedule.grid().count(side); ++leaf)
      all[{side, leaf}] = tree_of(schedule.grid(), side, leaf, {0, detail::root_level_of(schedule.grid().count(other))});
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
                    "reproducible: 8193 key positions are 4097 leaves of 2 positions; accepted: at "
                    "most 4096 leaves");
}
