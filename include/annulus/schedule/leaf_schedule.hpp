#pragma once
// Leaf schedule: the order in which a rank of a reproducible pass computes pairs of leaves and joins partial results,
// and the places in a buffer that it needs. A plan walks through it to count them, a builder of actions to write them.

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/leaf_forest.hpp"
#include "annulus/schedule/leaf_grid.hpp"

namespace annulus::detail {

/// The partial results of one leaf, and the leaves of the other side that it sees.
class LeafTree {
 public:
  /// Resets to no partial result, for leaf `index` of `side`.
  void begin(Side side, Index index) {
    side_ = side;
    index_ = index;
    forest_.clear();
  }

  Index index() const { return index_; }
  std::vector<LeafForest::Partial> const& partials() const { return forest_.partials(); }

  /// LeafForest::insert.
  template <class Join>
  void insert(LeafGrid const& grid, LeafNode node, Index place, Join&& join) {
    int const root = root_level_of(grid.count(side_ == Side::query ? Side::key : Side::query));
    auto const any_visible = [&](LeafNode const& other) { return grid.any_visible(side_, index_, other); };
    forest_.insert(root, any_visible, node, place, join);
  }

 private:
  Side side_ = Side::query;
  Index index_ = 0;
  LeafForest forest_;
};

/// Sides whose rows a pass sums over the leaves of the other side.
enum class LeafSums {
  resident,  ///< rows that stay with their rank
  rotating,  ///< rows that travel; partial sums computed elsewhere are sent to the owner of the rows
};

/// The sums of a reproducible pass on all ranks.
class LeafSchedule {
 public:
  /// `resident`, `rotating`: which sides are summed. offsets: of the steps, as RingPlan::offset. rows: those of each
  /// rank that travel, made of whole leaves; empty: all. first: null, or the schedule of the same steps whose places
  /// for resident sums this one uses, too; counts them for both.
  LeafSchedule(std::shared_ptr<LeafGrid const> grid, bool keys_rotate, bool resident, bool rotating,
               std::vector<int> offsets, int ranks, std::span<RowRange const> rows = {}, LeafSchedule* first = nullptr);

  LeafGrid const& grid() const { return *grid_; }
  std::shared_ptr<LeafGrid const> const& shared_grid() const { return grid_; }
  bool sums(LeafSums sums) const { return sums_[at(sums)]; }
  /// Leaves of a rank that the pass works on, in the order of their positions.
  std::span<Index const> leaves(LeafSums sums, Rank rank) const {
    if (sums == LeafSums::rotating && !rotating_leaves_.empty())
      return rotating_leaves_[static_cast<std::size_t>(rank)];
    return grid_->of_rank(side(sums), rank);
  }
  bool keys_rotate() const { return keys_rotate_; }
  Side side(LeafSums sums) const { return keys_rotate_ == (sums == LeafSums::rotating) ? Side::key : Side::query; }
  int ranks() const { return ranks_; }
  int steps() const { return static_cast<int>(offsets_.size()); }
  Rank owner(Rank rank, int step) const { return rank_at(rank - offsets_[static_cast<std::size_t>(step)], ranks_); }
  /// The rank whose results for rows of `rank` leave it after the step.
  Rank visitor(Rank rank, int step) const { return rank_at(rank + offsets_[static_cast<std::size_t>(step)], ranks_); }

  /// Rows of a buffer for all places of a rank; a place holds a leaf.
  Index place_rows(Rank rank, LeafSums sums) const {
    return places_[static_cast<std::size_t>(rank)][at(sums)] * grid_->longest(side(sums));
  }
  /// Largest number of partial results that one rank sends another one for a row.
  Index nodes_sent() const { return nodes_sent_; }

  static std::size_t at(LeafSums sums) { return sums == LeafSums::resident ? 0 : 1; }

 private:
  std::shared_ptr<LeafGrid const> grid_;
  bool keys_rotate_;
  std::array<bool, 2> sums_;
  std::vector<int> offsets_;
  int ranks_;
  std::vector<std::vector<Index>> rotating_leaves_;  ///< of each rank; empty: all
  std::vector<std::array<Index, 2>> places_;
  Index nodes_sent_ = 1;
};

/// Where a LeafWalk writes the actions of a step.
struct LeafOutput {
  ActionWriter* writer = nullptr;  ///< null: places are counted alone
  SlotRows here{};                 ///< rotating rows of the step; without a slot: among the operands
  SlotRows travelling{};           ///< results that leave after the step, or that have arrived
  RowRange held{};                 ///< rows of their owner that `here` and `travelling` have
  Index multiply_adds = 0;         ///< of the step
};

/// The leaf sums of one rank in one pass, which proceeds by calls of compute for each step, each followed by receive
/// for the step before if results were sent in it, and finish. Storage is reused by the next pass.
class LeafWalk {
 public:
  /// Begins a pass. The schedule outlives it. first: null, or the walk that has begun the same pass for the schedule
  /// whose places for resident sums this one uses; it finishes these sums, and outlives the pass. slots: with the
  /// places of the resident sums, and of those of this rank's rotating rows.
  void begin(LeafSchedule const& schedule, Rank rank, LeafWalk* first = nullptr, std::array<int, 2> slots = {-1, -1}) {
    schedule_ = &schedule;
    rank_ = rank;
    first_ = first;
    slots_ = slots;
    for (LeafSums const sums : {LeafSums::resident, LeafSums::rotating}) {
      if (first && sums == LeafSums::resident) continue;
      of(sums).places.clear();
      plant(of(sums).trees, sums, rank);
    }
    most_nodes_ = 0;
  }

  /// Computes the visible pairs of leaves of a step.
  void compute(int step, LeafOutput const& output = {}) {
    output_ = output;
    Rank const owner = schedule_->owner(rank_, step);
    find_pairs(owner);
    bool const resident = schedule_->sums(LeafSums::resident), rotating = schedule_->sums(LeafSums::rotating);
    if (step > 0) plant(visited_, LeafSums::rotating, owner);
    PlacePool &resident_places = of(LeafSums::resident).places, &rotating_places = of(LeafSums::rotating).places;
    auto& rotating_trees = step > 0 ? visited_ : of(LeafSums::rotating).trees;
    for (auto const& [resident_leaf, rotating_leaf] : pairs_) {
      Index const resident_place = resident ? resident_places.take() : -1;
      Index const rotating_place = rotating ? rotating_places.take() : -1;
      put_work(owner, {resident_leaf, rotating_leaf}, {resident_place, rotating_place});
      if (resident)
        insert(LeafSums::resident, tree_of(of(LeafSums::resident).trees, resident_leaf), {rotating_leaf, 0},
               resident_place);
      if (rotating)
        insert(LeafSums::rotating, tree_of(rotating_trees, rotating_leaf), {resident_leaf, 0}, rotating_place);
    }
    if (step == 0 || !rotating) return;
    for (LeafTree& tree : visited_) {
      Index node = 0;
      for (auto const& partial : tree.partials()) {
        put(Copy{place(LeafSums::rotating, tree.index(), partial.place), on_its_way(tree.index(), node++)});
        rotating_places.give_back(partial.place);
      }
      most_nodes_ = std::max(most_nodes_, node);
      // Each row is sent with all of its partial results: the others are empty.
      RowRange const rows = rows_of(LeafSums::rotating, tree.index());
      bool const sent = output_.held.begin <= rows.begin && rows.end <= output_.held.end;
      for (; sent && node < schedule_->nodes_sent(); ++node) put(Clear{on_its_way(tree.index(), node)});
    }
  }

  /// Joins the results for rows of this rank that left their visitor after `step`.
  void receive(int step, LeafOutput const& output = {}) {
    output_ = output;
    Rank const visitor = schedule_->visitor(rank_, step);
    LeafGrid const& grid = schedule_->grid();
    for (LeafTree& tree : of(LeafSums::rotating).trees) {
      // The partial results that the visitor has sent, found in its order.
      sent_.begin(schedule_->side(LeafSums::rotating), tree.index());
      for (Index const leaf : grid.of_rank(schedule_->side(LeafSums::resident), visitor))
        if (grid.any_visible(schedule_->side(LeafSums::rotating), tree.index(), {leaf, 0}))
          sent_.insert(grid, {leaf, 0}, 0, [](Index, Index) {});
      Index node = 0;
      for (auto const& partial : sent_.partials()) {
        Index const arrived = of(LeafSums::rotating).places.take();
        put(Copy{on_its_way(tree.index(), node++), place(LeafSums::rotating, tree.index(), arrived)});
        insert(LeafSums::rotating, tree, partial.node, arrived);
      }
    }
  }

  /// Uses the results of all leaves of this rank that are summed; of resident ones only if no other walk finishes them.
  void finish(ActionWriter* writer = nullptr) {
    output_ = {.writer = writer};
    for (LeafSums const sums : {LeafSums::resident, LeafSums::rotating}) {
      if (!schedule_->sums(sums) || (sums == LeafSums::resident && first_)) continue;
      PlacePool& pool = of(sums).places;
      for (LeafTree const& tree : of(sums).trees) {
        bool const sees_any = !tree.partials().empty();
        Index const last = sees_any ? tree.partials().front().place : pool.take();
        SlotRows const result = place(sums, tree.index(), last);
        if (!sees_any) put(Clear{result});
        put(Finish{result, rows_of(sums, tree.index())});
        if (!sees_any) pool.give_back(last);
      }
    }
  }

  /// Slots used since begin().
  Index places(LeafSums sums) { return of(sums).places.count(); }
  /// Largest number of partial results sent for a row since begin().
  Index most_nodes() const { return most_nodes_; }

 private:
  /// Partial results of this rank's own leaves of one side, and the places of all of that side.
  struct OwnSums {
    PlacePool places;
    std::vector<LeafTree> trees;
  };
  OwnSums& of(LeafSums sums) { return sums == LeafSums::rotating ? sums_[1] : first_ ? first_->sums_[0] : sums_[0]; }

  /// One empty tree for each leaf of a rank.
  void plant(std::vector<LeafTree>& trees, LeafSums sums, Rank rank) {
    Side const side = schedule_->side(sums);
    auto const leaves = schedule_->leaves(sums, rank);
    trees.resize(schedule_->sums(sums) ? leaves.size() : 0);
    for (std::size_t i = 0; i < trees.size(); ++i) trees[i].begin(side, leaves[i]);
  }
  static LeafTree& tree_of(std::vector<LeafTree>& trees, Index leaf) {
    return *std::lower_bound(trees.begin(), trees.end(), leaf,
                             [](LeafTree const& tree, Index index) { return tree.index() < index; });
  }

  void insert(LeafSums sums, LeafTree& tree, LeafNode node, Index computed) {
    tree.insert(schedule_->grid(), node, computed, [&](Index into, Index from) {
      put(Join{place(sums, tree.index(), into), place(sums, tree.index(), from)});
      of(sums).places.give_back(from);
    });
  }

  /// Rows of their owner that are a leaf.
  RowRange rows_of(LeafSums sums, Index leaf) const {
    return schedule_->grid().leaf(schedule_->side(sums), leaf).local_rows();
  }
  /// A place for a partial result of a leaf.
  SlotRows place(LeafSums sums, Index leaf, Index number) const {
    Index const begin = number * schedule_->grid().longest(schedule_->side(sums));
    return {slots_[LeafSchedule::at(sums)], {begin, begin + rows_of(sums, leaf).size()}};
  }
  SlotRows on_its_way(Index leaf, Index node) const {
    RowRange const rows = rows_of(LeafSums::rotating, leaf);
    return {output_.travelling.slot, from_first(rows, output_.held.begin), static_cast<int>(node)};
  }
  template <class What>
  void put(What const& what) {
    if (output_.writer) output_.writer->put(what);
  }
  /// Writes the work on a pair of leaves. leaves, places: of the resident and of the rotating side.
  void put_work(Rank owner, std::array<Index, 2> leaves, std::array<Index, 2> places) {
    if (!output_.writer) return;
    RowRange const own = rows_of(LeafSums::resident, leaves[0]), visiting = rows_of(LeafSums::rotating, leaves[1]);
    SlotRows const here{output_.here.slot, output_.here.slot < 0 ? visiting : from_first(visiting, output_.held.begin)};
    std::array<SlotRows, 2> sums;
    if (places[0] >= 0) sums[0] = place(LeafSums::resident, leaves[0], places[0]);
    if (places[1] >= 0) sums[1] = place(LeafSums::rotating, leaves[1], places[1]);
    auto const rows = by_side(schedule_->keys_rotate(), WorkRows{rank_, own, {-1, own}, static_cast<int>(leaves[0])},
                              WorkRows{owner, visiting, here, static_cast<int>(leaves[1])});
    auto const summed = by_side(schedule_->keys_rotate(), sums[0], sums[1]);
    put(Work{.pairs = WorkPairs::leaves,
             .queries = rows.queries,
             .keys = rows.keys,
             .query_sums = summed.queries,
             .key_sums = summed.keys,
             .opens_queries = true,
             .opens_keys = true,
             .multiply_adds = std::exchange(output_.multiply_adds, 0)});
  }

  /// Sets pairs_ to the visible pairs of own resident leaves and the owner's rotating leaves. If one side is summed,
  /// its leaves come one after the other. If both are, pairs follow the Z-order curve (Morton), on which partial
  /// results of n leaves of either side take about 2 n places instead of n log n.
  void find_pairs(Rank owner) {
    LeafGrid const& grid = schedule_->grid();
    Side const resident = schedule_->side(LeafSums::resident);
    pairs_.clear();
    for (Index const own : schedule_->leaves(LeafSums::resident, rank_))
      for (Index const other : schedule_->leaves(LeafSums::rotating, owner))
        if (grid.any_visible(resident, own, {other, 0})) pairs_.push_back({own, other});
    if (!schedule_->sums(LeafSums::rotating)) return;
    bool const both = schedule_->sums(LeafSums::resident);
    std::sort(pairs_.begin(), pairs_.end(), [&](auto const& a, auto const& b) {
      // On the curve, the side that differs in the higher bit decides.
      Index const first = a.first ^ b.first, second = a.second ^ b.second;
      bool const by_second = both ? first < second && first < (first ^ second) : second != 0;
      return by_second ? a.second < b.second : a.first < b.first;
    });
  }

  LeafSchedule const* schedule_ = nullptr;
  Rank rank_ = 0;
  std::array<OwnSums, 2> sums_;
  std::array<int, 2> slots_{-1, -1};  ///< with the places, by LeafSums
  LeafOutput output_;
  LeafWalk* first_ = nullptr;  ///< the walk that has the resident sums, if it is another one
  std::vector<LeafTree> visited_;
  LeafTree sent_;
  std::vector<std::pair<Index, Index>> pairs_;
  Index most_nodes_ = 0;
};

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE LeafSchedule::LeafSchedule(std::shared_ptr<LeafGrid const> grid, bool keys_rotate, bool resident,
                                          bool rotating, std::vector<int> offsets, int ranks,
                                          std::span<RowRange const> rows, LeafSchedule* first)
    : grid_(std::move(grid)),
      keys_rotate_(keys_rotate),
      sums_{resident, rotating},
      offsets_(std::move(offsets)),
      ranks_(ranks) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    auto& leaves = rotating_leaves_.emplace_back();
    for (Index const index : grid_->of_rank(side(LeafSums::rotating), static_cast<Rank>(r)))
      if (Index const row = grid_->leaf(side(LeafSums::rotating), index).local_begin;
          rows[r].begin <= row && row < rows[r].end)
        leaves.push_back(index);
  }
  LeafWalk walk, of_first;
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (first) of_first.begin(*first, rank);
    walk.begin(*this, rank, first ? &of_first : nullptr);
    for (int step = 0; step < steps(); ++step) {
      if (first) of_first.compute(step);
      walk.compute(step);
      if (rotating && step > 1) walk.receive(step - 1);
    }
    if (rotating && steps() > 1) walk.receive(steps() - 1);
    if (first) of_first.finish();
    walk.finish();
    places_.push_back({first ? 0 : walk.places(LeafSums::resident), walk.places(LeafSums::rotating)});
    if (first) first->places_[static_cast<std::size_t>(rank)][0] = of_first.places(LeafSums::resident);
    nodes_sent_ = std::max(nodes_sent_, walk.most_nodes());
  }
}

#endif

}  // namespace annulus::detail
