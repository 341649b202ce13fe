#pragma once
// The actions of a reproducible pass: each pair of leaves is computed separately, and partial results are joined in the
// fixed tree of the leaf schedule, at the rank that owns the rows.

#include <array>

#include "annulus/schedule/action.hpp"
#include "annulus/schedule/leaf_schedule.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// The actions of one lane, in the order of LeafWalk.
class LeafActions {
 public:
  /// resident, own: slots of the resident sums, and of those of this rank's own rows that travel. first: of the first
  /// lane, if this one adds to its resident sums; null otherwise.
  LeafActions(RingPlan const& plan, Rank rank, int resident, int own, LeafActions* first)
      : plan_(plan), leaves_(*plan.transport().leaves), rank_(rank), slots_{resident, own} {
    walk_.begin(leaves_, rank, first ? &first->walk_ : nullptr);
  }

  /// Pairs of leaves of a step. here: its rotating rows; results: those that leave after it.
  void compute(int step, SlotRows const& here, SlotRows const& results, ActionWriter& writer) {
    PlannedStep const& planned = plan_.step(rank_, step);
    walk_.compute(step, Emit{*this, writer, here, results, planned.held, planned.owner, planned.multiply_adds});
  }
  /// Joins the results that left their visitor after `step`.
  void receive(int step, SlotRows const& arrived, ActionWriter& writer) {
    walk_.receive(step, Emit{*this, writer, {}, arrived, plan_.step(rank_, step).arriving, rank_, 0});
  }
  void finish(ActionWriter& writer) { walk_.finish(Emit{*this, writer, {}, {}, {}, rank_, 0}); }

 private:
  Leaf const& leaf_of(LeafSums sums, Index leaf) const { return leaves_.grid().leaf(leaves_.side(sums), leaf); }
  /// Rows of the buffer for partial results of leaves: a place of the leaf schedule.
  SlotRows node(LeafSums sums, Index leaf, Index index) const {
    Index const begin = index * leaves_.grid().longest(leaves_.side(sums));
    return {slots_[LeafSchedule::at(sums)], {begin, begin + leaf_of(sums, leaf).rows}};
  }

  /// The calls of a LeafWalk as actions.
  struct Emit {
    LeafActions const& leaves;
    ActionWriter& writer;
    SlotRows here, travelling;
    RowRange held;  ///< rows of their owner that `here` and `travelling` have
    Rank owner;
    Index multiply_adds;

    void fold(Index resident_leaf, Index rotating_leaf, PairPlaces pair) {
      RowRange const own = leaves.leaf_of(LeafSums::resident, resident_leaf).local_rows();
      RowRange const visiting = leaves.leaf_of(LeafSums::rotating, rotating_leaf).local_rows();
      WorkRows const resident{leaves.rank_, own, {-1, own}, static_cast<int>(resident_leaf)};
      WorkRows const rotating{owner,
                              visiting,
                              {here.slot, here.slot < 0 ? visiting : from_first(visiting, held.begin)},
                              static_cast<int>(rotating_leaf)};
      SlotRows resident_sums, rotating_sums;
      if (pair.resident >= 0) resident_sums = leaves.node(LeafSums::resident, resident_leaf, pair.resident);
      if (pair.rotating >= 0) rotating_sums = leaves.node(LeafSums::rotating, rotating_leaf, pair.rotating);
      auto const rows = leaves.plan_.transport().by_side(resident, rotating);
      auto const summed = leaves.plan_.transport().by_side(resident_sums, rotating_sums);
      writer.put(Work{.pairs = WorkPairs::leaves,
                      .queries = rows.queries,
                      .keys = rows.keys,
                      .query_sums = summed.queries,
                      .key_sums = summed.keys,
                      .opens_queries = true,
                      .opens_keys = true,
                      .multiply_adds = std::exchange(multiply_adds, 0)});
    }
    void join(LeafSums sums, Index leaf, Index into, Index from) const {
      writer.put(Join{leaves.node(sums, leaf, into), leaves.node(sums, leaf, from)});
    }
    void send(Index leaf, Index node, Index from) const {
      writer.put(Copy{leaves.node(LeafSums::rotating, leaf, from), on_its_way(leaf, node)});
    }
    /// Sends an empty partial result: each row is sent with all of its partial results.
    void send_none(Index leaf, Index node) const {
      RowRange const rows = leaves.leaf_of(LeafSums::rotating, leaf).local_rows();
      if (held.begin <= rows.begin && rows.end <= held.end) writer.put(Clear{on_its_way(leaf, node)});
    }
    void receive(Index leaf, Index node, Index into) const {
      writer.put(Copy{on_its_way(leaf, node), leaves.node(LeafSums::rotating, leaf, into)});
    }
    void clear(LeafSums sums, Index leaf, Index index) const { writer.put(Clear{leaves.node(sums, leaf, index)}); }
    void finish(LeafSums sums, Index leaf, Index result) const {
      writer.put(Finish{leaves.node(sums, leaf, result), leaves.leaf_of(sums, leaf).local_rows()});
    }

    SlotRows on_its_way(Index leaf, Index node) const {
      RowRange const rows = leaves.leaf_of(LeafSums::rotating, leaf).local_rows();
      return {travelling.slot, from_first(rows, held.begin), static_cast<int>(node)};
    }
  };

  RingPlan const& plan_;
  LeafSchedule const& leaves_;
  Rank rank_;
  std::array<int, 2> slots_;
  LeafWalk walk_;
};

}  // namespace annulus::detail
