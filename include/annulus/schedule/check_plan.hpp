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
// That holds for every order in which ranks proceed: locks of rows end where the rank itself awaits or reclaims.

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
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "annulus/core/error.hpp"
#include "annulus/schedule/check/result_machine.hpp"
#include "annulus/schedule/pass_actions.hpp"

namespace annulus {

namespace detail {

/// The work and the results of all ranks.
class PlanMachine : private ResultMachine {
 public:
  PlanMachine(RingPlan const& plan, std::vector<ActionList> const& lists)
      : ResultMachine(plan, lists), work_(lists.size()) {
    for (RankWork& work : work_) work.pairs.resize(static_cast<std::size_t>(expected_.shares()) + 1);
  }

  /// Throws PlanFault. Every rank acts until it waits; rank 0 makes one action when all others wait, so that they are as
  /// far ahead of it as they can be. If all wait, none can go on.
  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (rank_ = 1; rank_ < plan_.ranks(); ++rank_)
        for (; has_action() && perform(); ++here().next) moved = true;
      rank_ = 0;
      if (moved || !has_action() || !perform()) continue;
      ++here().next;
      moved = true;
    }
    require_no_deadlock();
    for (rank_ = 0; rank_ < plan_.ranks(); ++rank_) require_end();
    require_all_pairs();
  }

 private:
  struct RankWork {
    std::vector<Index> pairs{};  ///< worked on, by share of the heads
    Index multiply_adds = 0;
  };

  RankWork& work() { return work_[static_cast<std::size_t>(rank_)]; }
  bool has_action() { return here().next < here().list->actions.size(); }
  bool perform() {
    require(action().lane < plan_.lanes().size(), "there is no lane ", int{action().lane});
    return std::visit([this](auto const& what) { return (*this)(what); }, action().what);
  }

  bool operator()(Shift const& shift) { return start(shift, false), true; }
  bool operator()(Open const& open) { return start(open.shift, true), true; }
  bool operator()(Await const& what) { return await(what); }
  bool operator()(Release const& what) { return release(what), true; }
  bool operator()(Reclaim const& what) { return reclaim(what); }
  bool operator()(Pack const& what) { return pack(what), true; }
  bool operator()(Take const& what) { return take(what), true; }
  bool operator()(Delta const& what) { return find_delta(what), true; }
  bool operator()(Finish const& what) { return finish(what), true; }
  bool operator()(Write const& what) { return write_results(what), true; }

  bool operator()(Copy const& copy) {
    require_same_count(copy.from.rows, copy.into.rows);
    auto const from = rows_of(copy.from), into = rows_to_write(copy.into);
    for (std::size_t i = 0; i < from.size(); ++i) {
      require(!read(*from[i]).closed, "reads sums that have been closed");
      put(*into[i], from[i]->held);
      into[i]->held.used = false;
      from[i]->held.used = true;
    }
    return true;
  }
  bool operator()(Clear const& clear) {
    for (SlotRow* row : rows_to_write(clear.rows)) put(*row, {.kind = HeldRow::sums});
    return true;
  }
  bool operator()(Join const& join) {
    require_same_count(join.from.rows, join.into.rows);
    auto const from = rows_of(join.from), into = rows_to_write(join.into);
    for (std::size_t i = 0; i < from.size(); ++i) {
      require(from[i] != into[i], "joins rows with themselves");
      HeldRow const& sums = read_sums(*from[i]);
      add(*into[i], sums.name, sums.seen);
    }
    return true;
  }
  bool operator()(SinkShare const& share) {
    std::vector<Index> const& own = expected_.own(Side::query, rank_);
    SlotRows const& delta = own_delta();
    Seen seen;
    for (Index row = share.queries.begin; row < share.queries.end; ++row) {
      HeldRow const& held = read(*rows_of({delta.slot, {row, row + 1}})[0]);
      Index const position = own[static_cast<std::size_t>(row)];
      require(held.name == RowName{RowName::query, share_of_lane(), position}, "delta is that of ", held.name);
      seen.add(hash_of(RowName::query, position));
      if (plan_.transport().leaves)
        seen.order = ExpectedSums::order_of_leaf(position / plan_.transport().leaves->grid().length());
    }
    require_same_count(share.into.rows, {0, 1});
    put(*rows_to_write(share.into)[0],
        {.kind = HeldRow::sums, .name = {RowName::sinks, share_of_lane(), 0}, .seen = seen});
    return true;
  }

  bool operator()(annulus::Work const& what) {
    require_rows_of_step(what);
    int const share = expected_.worked_share(rank_, action().lane);
    auto const queries = names_of(Side::query, what.queries, share);
    require_operands(GroupRows::queries, what.queries, queries);
    work().multiply_adds += what.multiply_adds;
    if (what.pairs == WorkPairs::joint) return add_joint_keys(what, queries), true;
    auto const keys = names_of(Side::key, what.keys, share);
    require_operands(GroupRows::keys, what.keys, keys);
    if (request().bias.heads > 0 || request().mask.heads > 0) require_pairs(what, queries);
    std::vector<Seen> of_queries(queries.size()), of_keys(keys.size());
    for_each_pair(what, [&](std::size_t query, std::size_t key) {
      of_queries[query].add(hash_of(RowName::key, keys[key].position) * expected_.factor(share));
      of_keys[key].add(hash_of(RowName::query, queries[query].position) * expected_.factor(share));
      ++work().pairs[static_cast<std::size_t>(share)];
    });
    if (request().bias_gradient) add_pairs(what, queries, of_queries);
    if (what.pairs == WorkPairs::leaves) {
      for (Seen& seen : of_queries) seen.order = ExpectedSums::order_of_leaf(what.keys.leaf);
      for (Seen& seen : of_keys) seen.order = ExpectedSums::order_of_leaf(what.queries.leaf);
    }
    add(what.query_sums, backward() ? Part::dq : Part::accumulator, queries, of_queries, what.opens_queries,
        what.closes_queries);
    if (backward()) add(what.key_sums, Part::dk, keys, of_keys, what.opens_keys, what.closes_keys);
    return true;
  }

  /// The tiles of a Work are those of the planned step, or of its leaves.
  void require_rows_of_step(annulus::Work const& what) {
    auto const require_rows = [&](WorkRows const& rows, Rank owner, RowRange planned) {
      bool const same = rows.rows == planned || (rows.rows.empty() && planned.empty());
      require(same && rows.owner == owner, "works on rows [", rows.rows.begin, ", ", rows.rows.end, ") of rank ",
              rows.owner, "; planned are [", planned.begin, ", ", planned.end, ") of rank ", owner);
    };
    require(what.pairs != WorkPairs::cached && 0 <= action().step && action().step < plan_.steps(),
            "no work of a step");
    if (what.pairs == WorkPairs::leaves) {
      LeafGrid const& grid = lane().transport().leaves->grid();
      for (auto const& [side, rows] : {std::pair{Side::query, &what.queries}, {Side::key, &what.keys}}) {
        require(0 <= rows->leaf && rows->leaf < grid.count(side), "leaf ", rows->leaf, " of ", grid.count(side));
        require_rows(*rows, grid.leaf(side, rows->leaf).owner, grid.leaf(side, rows->leaf).local_rows());
      }
    } else if (what.pairs == WorkPairs::step) {
      PlannedStep const& planned = lane().step(rank_, action().step);
      bool const keys_rotate = plan_.rotation() == Rotation::keys;
      require_rows(keys_rotate ? what.keys : what.queries, planned.owner, planned.held);
      require_rows(keys_rotate ? what.queries : what.keys, rank_, {0, plan_.resident_rows(rank_)});
    }
  }
  /// Calls visit(query, key) for the visible pairs of the tiles of a Work, counted from its first rows.
  template <class Visit>
  void for_each_pair(annulus::Work const& what, Visit const& visit) {
    if (what.pairs == WorkPairs::leaves)
      lane().transport().leaves->grid().find_tiles(what.queries.leaf, what.keys.leaf, finder_, &tiles_);
    else
      lane().find_tiles(rank_, action().step, finder_, tiles_);
    auto const position = [](std::vector<Index> const& worked, WorkRows const& rows, Index row) {
      return worked[static_cast<std::size_t>(rows.rows.begin + row)];
    };
    for (Tile const& tile : tiles_)
      for (Index i = 0; i < tile.query_count; ++i) {
        RowRange const seen = tile.keys_of(request().rules.mask, i);
        for (Index j = seen.begin; j < seen.end; ++j) {
          Index const query = tile.query_begin + i, key = tile.key_begin + j;
          require(query < what.queries.rows.size() && key < what.keys.rows.size(), "a tile has rows of other steps");
          bool const tested = tile.coverage == Coverage::elements;
          if (!tested ||
              expected_.visible(position(expected_.worked(Side::query, what.queries.owner), what.queries, query),
                                position(expected_.worked(Side::key, what.keys.owner), what.keys, key)))
            visit(static_cast<std::size_t>(query), static_cast<std::size_t>(key));
        }
      }
  }

  void add(SlotRow& row, RowName const& name, Seen const& seen) {
    HeldRow& sums = write(row);
    require(sums.kind == HeldRow::sums, "adds to rows in which no sums have been opened");
    require(!sums.closed, "adds to sums that have been closed");
    bool const same = name == RowName{} || sums.name == RowName{} || sums.name == name;
    require(same, "adds ", name, " to sums of ", sums.name);
    if (name != RowName{}) sums.name = name;
    sums.seen.hashes += seen.hashes;
    sums.seen.count += seen.count;
    sums.seen.order = Seen::order_of(sums.seen.order, seen.order);
    sums.used = false;
  }
  void add(SlotRows const& sums, Part part, std::vector<RowName> const& names, std::vector<Seen> const& seen,
           bool opens, bool closes) {
    require(state(sums).slot->layout.has(part), "the slot has no sums of ", name_of(part));
    require(sums.rows.size() == static_cast<Index>(names.size()), "adds ", names.size(), " rows to ", sums.rows.size());
    std::size_t next = 0;
    for (SlotRow* row : rows_to_write(sums)) {
      if (opens) put(*row, {.kind = HeldRow::sums});
      add(*row, names[next], seen[next]);
      row->held.closed = closes;
      ++next;
    }
    if (closes) state(sums).closed = true;
  }
  /// Adds to the gradient of the bias.
  void add_pairs(annulus::Work const& what, std::vector<RowName> const& queries, std::vector<Seen> const& seen) {
    auto const& slots = here().list->slots;
    auto const found =
        std::find_if(slots.begin(), slots.end(), [](Slot const& slot) { return slot.kind == SlotKind::bias_gradient; });
    SlotRows const sums{static_cast<int>(found - slots.begin()), what.queries.from.rows};
    std::size_t next = 0;
    for (SlotRow* row : rows_to_write(sums)) {
      add(*row, {RowName::pairs, 0, queries[next].position}, seen[next]);
      ++next;
    }
  }
  void add_joint_keys(annulus::Work const& what, std::vector<RowName> const& queries) {
    std::uint64_t const factor = expected_.factor(expected_.worked_share(rank_, action().lane));
    Seen of_query, of_keys;
    for (Index j = 0; j < request().joint_keys; ++j) of_query.add(hash_of(RowName::joint, j) * factor);
    add(what.query_sums, backward() ? Part::dq : Part::accumulator, queries,
        std::vector<Seen>(queries.size(), of_query), false, false);
    if (!backward()) return;
    for (RowName const& query : queries) of_keys.add(hash_of(RowName::query, query.position) * factor);
    add(what.key_sums, Part::dk, {{RowName::joint, share_of_lane(), 0}}, {of_keys}, false, false);
  }

  void require_no_deadlock() {
    std::string waiting;
    for (rank_ = 0; rank_ < plan_.ranks(); ++rank_)
      if (has_action()) waiting += (waiting.empty() ? "" : "; ") + place();
    if (!waiting.empty())
      throw PlanFault{"these ranks wait for each other, or for actions that are missing: " + waiting};
  }
  void require_end() {
    for (std::size_t e = 0; e < here().exchanges.size(); ++e)
      require(!here().exchanges[e].shift, "exchange ", e, " is still pending");
    for (std::size_t s = 0; s < streams_.size(); ++s)
      require(here().started[s] == streams_[s].size(), "has started ", here().started[s],
              " exchanges of a channel, other ranks ", streams_[s].size());
    for (SlotState const& slot : here().slots)
      for (SlotRow const& row : slot.contents)
        require(row.held.kind != HeldRow::sums || row.held.used || slot.slot->layout.bytes_per_row() == 0 ||
                    row.held.seen.count == 0,
                "sums of ", row.held.name, " in ", SlotName{*slot.slot}, " have not been used");
    require_finished();
    require(bytes_of(here().list->slots) == plan_.peak_buffer_bytes(rank_), "the slots have ",
            bytes_of(here().list->slots), " bytes, planned are ", plan_.peak_buffer_bytes(rank_));
    require(here().bytes == plan_.bytes_sent(rank_), "sends ", here().bytes, " bytes, planned are ",
            plan_.bytes_sent(rank_));
    require(work().multiply_adds == plan_.multiply_adds(rank_), "makes ", work().multiply_adds,
            " multiply-adds, planned are ", plan_.multiply_adds(rank_));
  }

  /// In each share of the heads.
  void require_all_pairs() {
    int const shares = expected_.shares();
    for (int share = shares > 0 ? 1 : 0; share <= shares; ++share) {
      Index pairs = 0;
      for (RankWork const& work : work_) pairs += work.pairs[static_cast<std::size_t>(share)];
      if (pairs != expected_.visible_pairs())
        throw PlanFault{
            message_of("all ranks work on ", pairs, " pairs of rows, visible are ", expected_.visible_pairs())};
    }
  }

  std::vector<RankWork> work_;
  TileFinder finder_;
  std::vector<Tile> tiles_;
};

}  // namespace detail

ANNULUS_INLINE std::optional<std::string> find_fault(RingPlan const& plan, std::vector<ActionList> const& lists) {
  try {
    detail::PlanMachine(plan, lists).run();
  } catch (detail::PlanFault const& fault) {
    return fault.text;
  }
  return std::nullopt;
}

ANNULUS_INLINE void check_plan(RingPlan const& plan) {
  std::vector<ActionList> lists;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) lists.push_back(actions_of(plan, rank));
  std::optional<std::string> const fault = find_fault(plan, lists);
  detail::check<Error>(!fault, "plan: ", fault.value_or(""));
}

}  // namespace annulus
#endif
