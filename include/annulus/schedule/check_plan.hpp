#pragma once
// Checker of plans: runs the lists of actions of all ranks on an abstract machine without data. A row of a slot holds
// the name of an operand row, or what a sum has seen; an exchange ends when the peers have started it, too. What it
// proves:
//  - each visible pair of rows is worked on exactly once, and each row of a result is finished once, from sums that
//    have seen exactly what they must (of a reproducible pass, joined in the order of the tree);
//  - all ranks start the same exchanges in the same order per channel, with equal rows, parts and checksum codes on
//    both sides, and they cannot deadlock;
//  - nothing is read before it is written or has arrived, and nothing is overwritten while it is sent, arrives, may be
//    read by another rank, or has not been used; nothing is pending or unfinished at the end;
//  - rows, bytes of buffers, bytes sent and work are those that the plan states.
// The proof does not depend on how fast each rank is: locks of rows end where the rank itself awaits or reclaims. Pairs
// are not counted: what is added to a sum must be used, up to a result, and a result must have seen each row once.

#include <optional>
#include <string>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// The first fault of these lists of actions, one of each rank; empty if there is none. Takes time in proportion to the
/// pairs of positions, and to the rows of the steps of all ranks.
std::optional<std::string> find_fault(RingPlan const& plan, std::vector<ActionList> const& lists);

/// Throws Error if the lists that actions_of makes have a fault.
void check_plan(RingPlan const& plan);

/// True for plans whose check takes about a millisecond: RingAttention checks them in builds without NDEBUG.
inline bool is_quick_to_check(RingPlan const& plan) {
  constexpr Index most_steps = 64, most_pairs = 1 << 14;
  return plan.ranks() * plan.steps() <= most_steps &&
         detail::saturating_product(plan.global_queries(), plan.global_keys()) <= most_pairs;
}

}  // namespace annulus

#if defined(ANNULUS_DEFINITIONS)
#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <tuple>

#include "annulus/core/error.hpp"
#include "annulus/schedule/check/expected_sums.hpp"
#include "annulus/schedule/check/slot_machine.hpp"
#include "annulus/schedule/pass_actions.hpp"

namespace annulus {

namespace detail::checker {

/// Operands, work and results of all ranks of a plan.
class PlanMachine : public SlotMachine {
 public:
  PlanMachine(RingPlan const& plan, std::vector<ActionList> const& lists)
      : SlotMachine(plan.request(), lists), plan_(plan), expected_(plan), taken_(lists.size()) {
    for (rank_ = 0; rank_ < plan_.ranks(); ++rank_) expect_all_results();
  }

  using SlotMachine::operator();
  void operator()(Take const& take) {
    rows_of(take.from);
    for (PartLayout const& part : slot(take.from).layout.parts)
      if (is_stored(part)) at(taken_, rank_)[{action().lane, take.kind, part.part}] = take.from;
  }
  void operator()(Delta const& delta) { put_names(delta.into, own_names(RowName::query)); }
  void operator()(SinkShare const& share) {
    RowNames const names =
        names_of(RowName::query, share_of_lane(), expected_.own(RowName::query, rank_), share.queries);
    require_names(names_in({here().list->find(SlotKind::delta, 0, action().lane), share.queries}, Part::delta), names);
    Seen seen;
    for (RowName const& name : names) {
      seen.add(name);
      if (expected_.grid()) seen.order = Seen::order_of_leaf(name.position / expected_.grid()->length());
    }
    add(share.into, Part::dsinks, own_names(RowName::sinks), {seen}, true);
  }

  void operator()(Work const& work) {
    int const share = expected_.worked_share(rank_, action().lane);
    here().multiply_adds += work.multiply_adds;
    RowNames const queries = names_of_work(Side::query, work, work.queries, share);
    require_operands(GroupRows::queries, work.queries, queries);
    if (work.pairs == WorkPairs::joint) return add_joint_keys(work, queries, share);
    RowNames const keys = names_of_work(Side::key, work, work.keys, share);
    require_operands(GroupRows::keys, work.keys, keys);
    RowNames pairs = queries;
    for (RowName& name : pairs) name.kind = RowName::pairs;
    require_operands(GroupRows::pairs, work.queries, pairs);
    std::vector<Seen> of_queries(queries.size()), of_keys(keys.size());
    see_pairs(work, queries, keys, of_queries, of_keys);
    for (RowName& name : pairs) name.share = 0;
    if (request_.bias_gradient)
      add({here().list->find(SlotKind::bias_gradient, 0, 0), work.queries.from.rows}, Part::dbias, pairs, of_queries);
    if (work.pairs == WorkPairs::leaves) {
      for (Seen& seen : of_queries) seen.order = Seen::order_of_leaf(work.keys.leaf);
      for (Seen& seen : of_keys) seen.order = Seen::order_of_leaf(work.queries.leaf);
    }
    add(work.query_sums, part_of_queries(), queries, of_queries, work.opens_queries, work.closes_queries);
    if (backward()) add(work.key_sums, Part::dk, keys, of_keys, work.opens_keys, work.closes_keys);
  }

  /// Where heads are split, rows that the rank works on are finished for the group: their owners write them.
  void operator()(Finish const& finish) {
    RowName::Kind const kind = kind_of(finish.from);
    bool const for_group = (kind == RowName::query || kind == RowName::key) && plan_.groups().splits_heads() &&
                           action().step != Action::in_group;
    RowNames const all =
        for_group ? names_of(kind, expected_.worked_share(rank_, 0), expected_.worked(kind, rank_)) : own_names(kind);
    require(finish.rows.begin >= 0 && finish.rows.end <= std::ssize(all), "the result has ", all.size(), " rows");
    RowNames const sums(all.begin() + finish.rows.begin, all.begin() + finish.rows.end);
    RowNames const results = of_heads(sums, finish.heads);
    auto const from = rows_of(finish.from);
    require_count(from.size(), sums.size());
    auto const closed = std::count_if(from.begin(), from.end(), [](SlotRow* row) { return row->held.closed; });
    require(closed == 0 || closed == std::ssize(all), "a work has written some of the ", all.size(), " rows");
    for (std::size_t i = 0; i < from.size(); ++i) from[i]->finish(sums[i], expected_.of(results[i]));
    if (!for_group) return count_results(results);
    put_names({here().list->find(SlotKind::group_results, kind == RowName::key, 0), finish.rows}, results);
  }
  void operator()(Write const& write) {
    RowName::Kind const kind = kind_of(write.from);
    Part const part = !backward() ? Part::output : kind == RowName::key ? Part::dk : Part::dq;
    write_results(write.from, part, of_heads(own_names(kind), write.heads));
  }

 private:
  int share_of_lane() { return expected_.share_of_lane(action().lane); }
  Part part_of_queries() const { return backward() ? Part::dq : Part::accumulator; }
  /// Rows of this rank's operands and results.
  RowNames own_names(RowName::Kind kind) {
    return names_of(kind, kind == RowName::pairs ? 0 : share_of_lane(), expected_.own(kind, rank_));
  }
  /// The kind of the rows that the slot has sums or results of.
  RowName::Kind kind_of(SlotRows const& rows) {
    auto const has = [&](Part part) { return slot(rows).layout.has(part); };
    require(!slot(rows).layout.empty(), "the slot has no parts");
    if (slot(rows).kind == SlotKind::joint_gradients) return RowName::joint;
    return has(Part::dsinks)  ? RowName::sinks
           : has(Part::dbias) ? RowName::pairs
           : has(Part::dk)    ? RowName::key
                              : RowName::query;
  }
  void perform_action() override {
    require(action().lane < plan_.lanes().size(), "there is no lane ", int{action().lane});
    std::visit(*this, action().what);
  }
  RowNames operands(GroupRows kind, Part part, RowRange rows) override {
    auto const& taken = at(taken_, rank_);
    if (auto const found = taken.find({action().lane, kind, part}); found != taken.end()) {
      SlotRows const& from = found->second;
      require(rows.empty() || rows.end <= from.rows.size(), "reads ", text(rows), " of ", name_of(part), ", which has ",
              from.rows.size());
      return names_in({from.slot, {from.rows.begin + rows.begin, from.rows.begin + rows.end}}, part);
    }
    require(part != Part::delta, "delta has not been computed");
    bool const rounds = std::holds_alternative<Pack>(action().what);
    require(rounds || !request_.has_wire() || !has_wire_type(part), name_of(part), " has not been rounded");
    static constexpr std::array kinds{RowName::query, RowName::key, RowName::pairs};
    RowName::Kind const own = kinds[index_of(kind)];
    return names_of(own, share_of_lane(), expected_.own(own, rank_), rows);
  }

  void expect_all_results() {
    bool const splits = plan_.groups().splits_heads();
    auto const expect = [&](RowName::Kind kind, bool of_shares) {
      int const shares = of_shares ? expected_.shares() : 0;
      for (int share = std::min(shares, 1); share <= shares; ++share)
        expect_results(names_of(kind, share, expected_.own(kind, rank_)));
    };
    expect(RowName::query, true);
    if (!backward()) return;
    expect(RowName::key, true);
    // A gradient without elements is not exchanged in groups.
    bool const exchanged = !plan_.transport().after[index_of(GroupRows::pairs)].empty();
    if (request_.bias_gradient && (exchanged || !plan_.groups().gathers(Side::query)))
      expect(RowName::pairs, splits && request_.bias.heads > 1);
    if (request_.joint_keys > 0) expect(RowName::joint, !splits);
    if (request_.sinks > 0) expect(RowName::sinks, !splits);
  }
  void require_end() override {
    SlotMachine::require_end();
    require_planned("the slots have ", bytes_of(here().list->slots), " bytes", plan_.peak_buffer_bytes(rank_));
    require_planned("sends ", here().bytes, " bytes", plan_.bytes_sent(rank_));
    require_planned("makes ", here().multiply_adds, " multiply-adds", plan_.multiply_adds(rank_));
  }

  RingPlan const& lane() { return plan_.lanes()[action().lane]; }
  /// Names of the rows of one side of a Work. They are those of the planned step or of its leaf, as its tiles are.
  RowNames names_of_work(Side side, Work const& work, WorkRows const& rows, int share) {
    bool const known = work.pairs != WorkPairs::cached && (work.pairs != WorkPairs::leaves || expected_.grid());
    require(known && 0 <= action().step && action().step < plan_.steps(), "no work of a step");
    Rank owner = rank_;
    RowRange planned{0, plan_.resident_rows(rank_)};
    if (work.pairs == WorkPairs::joint) {
      planned = rows.rows;
    } else if (work.pairs == WorkPairs::leaves) {
      LeafGrid const& grid = *expected_.grid();
      require(0 <= rows.leaf && rows.leaf < grid.count(side), "leaf ", rows.leaf, " of ", grid.count(side));
      owner = grid.leaf(side, rows.leaf).owner;
      planned = grid.leaf(side, rows.leaf).local_rows();
    } else if ((side == Side::key) == (plan_.rotation() == Rotation::keys)) {
      owner = lane().step(rank_, action().step).owner;
      planned = lane().step(rank_, action().step).held;
    }
    bool const same = rows.rows == planned || (rows.rows.empty() && planned.empty());
    require(same && rows.owner == owner, "works on ", text(rows.rows), " of rank ", rows.owner, "; planned are [",
            planned.begin, ", ", planned.end, ") of rank ", owner);
    RowName::Kind const kind = side == Side::query ? RowName::query : RowName::key;
    return names_of(kind, share, expected_.worked(kind, owner), planned);
  }
  /// Adds the visible pairs of the tiles of a Work, which are counted from its first rows.
  void see_pairs(Work const& work, RowNames const& queries, RowNames const& keys, std::vector<Seen>& of_queries,
                 std::vector<Seen>& of_keys) {
    if (work.pairs == WorkPairs::leaves)
      expected_.grid()->find_tiles(work.queries.leaf, work.keys.leaf, finder_, &tiles_);
    else
      lane().find_tiles(rank_, action().step, finder_, tiles_);
    for (Tile const& tile : tiles_)
      for (Index i = 0; i < tile.query_count; ++i) {
        Index const q = tile.query_begin + i;
        RowRange const seen = tile.keys_of(request_.rules.mask, i);
        for (Index k = tile.key_begin + seen.begin; k < tile.key_begin + seen.end; ++k) {
          require(q < std::ssize(queries) && k < std::ssize(keys), "a tile has rows of other steps");
          RowName const &query = at(queries, q), &key = at(keys, k);
          if (tile.coverage == Coverage::elements && !expected_.visible(query.position, key.position)) continue;
          at(of_queries, q).add(key);
          at(of_keys, k).add(query);
        }
      }
  }
  void add_joint_keys(Work const& work, RowNames const& queries, int share) {
    Seen of_query, of_keys;
    for (Index j = 0; j < request_.joint_keys; ++j) of_query.add({RowName::joint, share, j});
    for (RowName const& query : queries) of_keys.add(query);
    add(work.query_sums, part_of_queries(), queries, std::vector(queries.size(), of_query));
    if (backward()) add(work.key_sums, Part::dk, own_names(RowName::joint), {of_keys});
  }

  RingPlan const& plan_;
  ExpectedSums expected_;
  /// By rank: operands that are no longer the caller's, by lane.
  std::vector<std::map<std::tuple<int, GroupRows, Part>, SlotRows>> taken_;
  TileFinder finder_;
  std::vector<Tile> tiles_;
};

}  // namespace detail::checker

ANNULUS_INLINE std::optional<std::string> find_fault(RingPlan const& plan, std::vector<ActionList> const& lists) {
  return detail::checker::PlanMachine(plan, lists).find_fault();
}

ANNULUS_INLINE void check_plan(RingPlan const& plan) {
  std::vector<ActionList> lists;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) lists.push_back(actions_of(plan, rank));
  std::optional<std::string> const fault = find_fault(plan, lists);
  detail::check<Error>(!fault, "plan: ", fault.value_or(""));
}

}  // namespace annulus
#endif
