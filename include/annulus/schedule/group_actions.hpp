#pragma once
// The actions of a group: its ranks exchange operands before the rings between the groups, and send results to the
// owners of their rows after them, all at once by shifts of the whole ring. Heads are split among the ranks of a group
// (two levels), or it works on the rows of all of them (tiles, all-gather).

#include "annulus/schedule/action.hpp"
#include "annulus/schedule/plan_slots.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

class GroupActions : LaneBuilder {
 public:
  using LaneBuilder::LaneBuilder;

  /// Operands are exchanged, and used instead of this rank's own.
  void before() {
    writer_.at(Action::in_group, Phase::prepare);
    for (int member = 0; member < groups_.size(); ++member)
      if (groups_.splits_heads() || member == place_) pack(member);
    exchange([&](GroupRows kind) { start_before(kind); });
    for (GroupRows kind : all_group_rows)
      if (!before_of(kind).empty()) take(kind);
  }

  /// Results are exchanged, and written to those of this rank.
  void after() {
    writer_.at(Action::in_group, Phase::finish);
    exchange([&](GroupRows kind) { start_after(kind); });
    for (GroupRows kind : all_group_rows)
      if (!after_of(kind).empty()) finish(kind);
  }

 private:
  PayloadLayout const& before_of(GroupRows kind) const { return transport_.before[index_of(kind)]; }
  PayloadLayout const& after_of(GroupRows kind) const { return transport_.after[index_of(kind)]; }
  RowRange member_rows(GroupRows kind, int member) const { return groups_.member_rows(side_of(kind), rank_, member); }
  RowRange own_rows(GroupRows kind) const { return all_rows(groups_.own_rows(side_of(kind), rank_)); }
  /// Rows for or from another member, in a slot that has those of all others.
  SlotRows staged(int slot, GroupRows kind, int member) const {
    Index const rows = own_rows(kind).size(), begin = (member < place_ ? member : member - 1) * rows;
    return {slot, {begin, begin + rows}};
  }
  /// Results for all members.
  int source(GroupRows kind) const {
    if (kind == GroupRows::pairs) return slot(SlotKind::bias_gradient);
    return groups_.splits_heads() ? slot(SlotKind::group_results, kind) : slot(SlotKind::resident);
  }
  /// After the exchange, results of this rank's rows from a member, itself included.
  SlotRows results_from(GroupRows kind, int member) const {
    if (member == place_) return {source(kind), member_rows(kind, member)};
    return staged(slot(SlotKind::arriving, kind), kind, member);
  }

  void pack(int member) {
    HeadShare const heads = groups_.splits_heads() ? HeadShare{member, groups_.size()} : HeadShare{};
    for (GroupRows kind : all_group_rows) {
      if (before_of(kind).empty()) continue;
      SlotRows const into = member == place_ ? SlotRows{slot(SlotKind::gathered, kind), member_rows(kind, member)}
                                             : staged(slot(SlotKind::leaving, kind), kind, member);
      writer_.put(Pack{kind, own_rows(kind), heads, into});
    }
  }

  void take(GroupRows kind) {
    SlotRows const gathered{slot(SlotKind::gathered, kind), all_rows(groups_.rows(side_of(kind), rank_))};
    writer_.put(Take{kind, gathered});
    if (!request_.has_wire() || kind == GroupRows::pairs) return;
    SlotRows const widened{slot(SlotKind::rounded, kind), gathered.rows};
    writer_.put(Copy{gathered, widened});
    writer_.put(Take{kind, widened});
  }

  void finish(GroupRows kind) {
    bool const splits = groups_.splits_heads() && (kind != GroupRows::pairs || request_.bias.heads > 1);
    if (splits) {
      for (int member = 0; member < groups_.size(); ++member) {
        HeadShare const heads{member, groups_.size()};
        if (kind == GroupRows::pairs)
          writer_.put(Finish{results_from(kind, member), own_rows(kind), heads});
        else
          writer_.put(Write{results_from(kind, member), heads});
      }
      return;
    }
    for (int member = 1; member < groups_.size(); ++member)
      writer_.put(Join{results_from(kind, 0), results_from(kind, member)});
    writer_.put(Finish{results_from(kind, 0), own_rows(kind)});
  }

  /// The operands of a kind: this rank's rows for all members or, where heads are split, those staged for each.
  void start_before(GroupRows kind) {
    if (before_of(kind).empty()) return;
    int const gathered = slot(SlotKind::gathered, kind), leaving = slot(SlotKind::leaving, kind);
    bool const splits = groups_.splits_heads();
    start(kind, Channel::prefetched, [&](Shift& shift, int to, int sender) {
      if (to >= 0) {
        shift.out = splits ? staged(leaving, kind, to) : SlotRows{gathered, member_rows(kind, place_)};
        shift.leaving_slot = splits ? to : place_;
        // The same bytes for all, which must not change once the first transfer has begun.
        shift.sealed = !splits && std::exchange(sealed_[index_of(kind)], true);
      }
      if (sender >= 0) shift.in = {gathered, member_rows(kind, sender)};
    });
  }
  /// The results of a kind, which a slot has for all members.
  void start_after(GroupRows kind) {
    if (after_of(kind).empty()) return;
    start(kind, Channel::carried, [&](Shift& shift, int to, int sender) {
      if (to >= 0) {
        shift.out = {source(kind), member_rows(kind, to)};
        shift.leaving_slot = to;
      }
      if (sender >= 0) shift.in = staged(slot(SlotKind::arriving, kind), kind, sender);
    });
  }

  /// Rows of all kinds leave a rank at the same time, between the steps of the ring: their checksums differ.
  int code(GroupRows kind, Rank sender) const {
    constexpr int codes_of_a_kind = 1 << 20;
    return (1 + static_cast<int>(kind)) * codes_of_a_kind + sender;
  }
  /// Writes the shifts of a kind, whose rows fill(shift, to, sender) adds: places of the members that this rank sends
  /// to and receives from; -1: none. A rank sends to the member `distance` places on, around the group, which lies
  /// behind it for the last ones of a group that is not the whole ring: that is another shift of all ranks.
  template <class Fill>
  void start(GroupRows kind, Channel channel, Fill&& fill) {
    int const members = groups_.size(), ranks = plan_.ranks();
    auto const place_at = [&](int hop) {
      Rank const other = rank_at(rank_ + hop, ranks);
      return groups_.member(other, 0) == groups_.member(rank_, 0) ? groups_.place(other) : -1;
    };
    for (int distance = 1; distance < members; ++distance)
      for (int hop : {distance, ranks - members + distance}) {
        Shift shift{
            .channel = channel, .hop = hop, .exchange = writer_.exchanges(1), .leaving_code = code(kind, rank_)};
        int const sender = place_at(-hop);
        fill(shift, place_at(hop), sender);
        if (sender >= 0) {
          shift.sender = groups_.member(rank_, sender);
          shift.arriving_code = code(kind, shift.sender);
          shift.arriving_slot = sender;
        }
        writer_.put(shift);
        if (members == ranks) break;
      }
  }

  /// Starts the exchanges of all kinds by start(kind), then awaits those of each kind.
  template <class Start>
  void exchange(Start&& start) {
    std::array<Await, 3> started{};
    for (GroupRows kind : all_group_rows) {
      Await& of_kind = started[index_of(kind)];
      of_kind.exchange = writer_.next_exchange();
      start(kind);
      of_kind.count = writer_.next_exchange() - of_kind.exchange;
    }
    for (Await const& of_kind : started)
      if (of_kind.count > 0) writer_.put(of_kind);
  }

  int const place_ = groups_.place(rank_);
  std::array<bool, 3> sealed_{};
};

}  // namespace annulus::detail
