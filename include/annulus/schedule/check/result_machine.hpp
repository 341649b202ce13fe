#pragma once
// Results on the abstract machine: each row is finished once, from sums that have seen what they must. See
// check_plan.hpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "annulus/schedule/check/operand_machine.hpp"

namespace annulus::detail {

class ResultMachine : protected OperandMachine {
 public:
  ResultMachine(RingPlan const& plan, std::vector<ActionList> const& lists)
      : OperandMachine(plan, lists), finished_(lists.size()) {
    for (Finished& finished : finished_) {
      expect_results(finished);
      ++rank_;
    }
    rank_ = 0;
  }

 protected:
  void finish(Finish const& finish) {
    RowName::Kind const kind = kind_of_sums(finish.from);
    bool const sides = kind == RowName::query || kind == RowName::key;
    bool const in_group = sides && plan_.groups().splits_heads() && action().step != Action::in_group;
    std::vector<Index> const positions = result_positions(kind, in_group);
    require_same_count(finish.from.rows, finish.rows);
    require(finish.rows.begin >= 0 && finish.rows.end <= static_cast<Index>(positions.size()), "the result has ",
            positions.size(), " rows");
    SlotState& from = state(finish.from);
    require(!from.closed || finish.rows.size() == static_cast<Index>(positions.size()),
            "the sums were closed by a work that writes all rows of the result");
    int const share = kind == RowName::pairs ? 0 : in_group ? expected_.worked_share(rank_, 0) : share_of_lane();
    Index row = finish.rows.begin;
    for (SlotRow* one : rows_of(finish.from)) {
      RowName name{kind, share, positions[static_cast<std::size_t>(row)]};
      HeldRow const& sums = read_sums(*one, true);
      require(sums.name == RowName{} || sums.name == name, "finishes sums of ", sums.name, " as ", name);
      require(sums.closed || !from.closed, "other sums of the slot have been closed, these have not");
      if (finish.heads.of > 1) name.share = finish.heads.place + 1;
      require_seen(name, sums.seen);
      in_group ? put_result(name, row) : count_finished(name, row);
      ++row;
    }
  }
  void write_results(Write const& write) {
    Part const part = first_part(write.from);
    RowName::Kind const kind = part == Part::dk ? RowName::key : RowName::query;
    std::vector<Index> const& own = expected_.own(kind == RowName::key ? Side::key : Side::query, rank_);
    require_same_count(write.from.rows, {0, static_cast<Index>(own.size())});
    Index row = 0;
    for (SlotRow* one : rows_of(write.from)) {
      RowName const name{kind, write.heads.place + 1, own[static_cast<std::size_t>(row)]};
      require(read(*one).kind == HeldRow::result && one->held.name == name, "writes ", one->held.name, " as ", name);
      count_finished(name, row++);
    }
  }

  void require_finished() {
    for (auto const& times : finished_[static_cast<std::size_t>(rank_)])
      require(std::count(times.begin(), times.end(), 1) == std::ssize(times),
              "rows of results are not finished: ", std::count(times.begin(), times.end(), 0), " of ", times.size());
  }

 private:
  /// Times that each row is finished, by RowName::Kind: [share of the heads, row of the result].
  using Finished = std::array<std::vector<int>, 6>;

  Index own_rows(RowName::Kind kind) const {
    bool const one = kind == RowName::joint || kind == RowName::sinks;
    return one ? 1 : static_cast<Index>(expected_.own(kind == RowName::key ? Side::key : Side::query, rank_).size());
  }

  /// The results that the current rank must finish.
  void expect_results(Finished& finished) {
    int const shares = std::max(1, expected_.shares());
    int const lanes = plan_.groups().splits_heads() ? 1 : shares;
    bool const splits_pairs = plan_.groups().splits_heads() && request().bias.heads > 1;
    auto const expect = [&](RowName::Kind kind, bool given, int count) {
      if (given) finished[kind].resize(static_cast<std::size_t>(own_rows(kind) * count));
    };
    expect(RowName::query, true, shares);
    expect(RowName::key, backward(), shares);
    // A gradient without elements is not exchanged in groups.
    bool const exchanged = !plan_.transport().after[index_of(GroupRows::pairs)].empty();
    bool const finishes_pairs = request().bias_gradient && (exchanged || !plan_.groups().gathers(Side::query));
    expect(RowName::pairs, finishes_pairs, splits_pairs ? shares : 1);
    expect(RowName::joint, backward() && request().joint_keys > 0, lanes);
    expect(RowName::sinks, backward() && request().sinks > 0, lanes);
  }

  Part first_part(SlotRows const& rows) {
    PayloadLayout const& layout = state(rows).slot->layout;
    require(!layout.empty(), "the slot has no parts");
    return layout.parts[0].part;
  }
  RowName::Kind kind_of_sums(SlotRows const& rows) {
    SlotKind const kind = state(rows).slot->kind;
    if (kind == SlotKind::joint_gradients) return RowName::joint;
    if (kind == SlotKind::sink_gradients) return RowName::sinks;
    if (kind == SlotKind::bias_gradient || first_part(rows) == Part::dbias) return RowName::pairs;
    return first_part(rows) == Part::dk ? RowName::key : RowName::query;
  }
  /// Positions of the rows of a result: of this rank, or (in_group) of those of its group that it works on.
  std::vector<Index> result_positions(RowName::Kind kind, bool in_group) {
    if (kind == RowName::joint || kind == RowName::sinks) return {0};
    Side const side = kind == RowName::key ? Side::key : Side::query;
    return in_group ? expected_.worked(side, rank_) : expected_.own(side, rank_);
  }
  void require_seen(RowName const& name, Seen const& seen) {
    Seen expected = expected_.of(name);
    if (name.kind == RowName::sinks && plan_.transport().leaves) expected.order = expected_.order_over_queries();
    require(seen.count == expected.count, "sums of ", name, " have seen ", seen.count, " rows, expected ",
            expected.count);
    require(seen.hashes == expected.hashes, "sums of ", name, " have seen other rows than they must");
    bool const ordered = plan_.transport().leaves && name.kind != RowName::pairs;
    require(!ordered || seen.order == expected.order, "sums of ", name, " are not joined in the order of the tree");
  }
  /// Puts a result into the slot of results for the group.
  void put_result(RowName const& name, Index row) {
    GroupRows const kind = name.kind == RowName::key ? GroupRows::keys : GroupRows::queries;
    auto const& slots = here().list->slots;
    auto const found = std::find_if(slots.begin(), slots.end(), [&](Slot const& slot) {
      return slot.kind == SlotKind::group_results && slot.number == static_cast<int>(kind);
    });
    SlotRows const into{static_cast<int>(found - slots.begin()), {row, row + 1}};
    put(*rows_to_write(into)[0], {.kind = HeldRow::result, .name = name});
  }
  void count_finished(RowName const& name, Index row) {
    auto& times = finished_[static_cast<std::size_t>(rank_)][name.kind];
    auto const place = static_cast<std::size_t>(std::max(0, name.share - 1) * own_rows(name.kind) + row);
    require(place < times.size(), name, " is no result of this pass");
    require(++times[place] == 1, name, " is finished a second time");
  }

  std::vector<Finished> finished_;
};

}  // namespace annulus::detail
