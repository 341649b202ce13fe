#pragma once
// Text form of a list of actions: the slots of a rank, then what it does with them, step by step.

#include <ostream>
#include <string>
#include <string_view>

#include "annulus/core/definitions.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus {

/// Name of a slot: its kind and number and, of the second lane, the lane.
std::string name_of(Slot const& slot);

/// True if the slot has memory, or refers to that of another rank.
bool is_used(Slot const& slot);

/// Name of an action.
std::string_view name_of(Action const& action);

/// What an action of the list does, in words, without its name.
std::string describe(ActionList const& list, Action const& action);

/// Step of an action: "step 2", "before the steps" or "in the group".
std::string step_name(Action const& action);

/// Writes the slots of the rank that are used, and its actions, one line each, grouped by step.
void print_actions(std::ostream& out, RingPlan const& plan, Rank rank);

}  // namespace annulus

#if defined(ANNULUS_DEFINITIONS)
#include <algorithm>
#include <array>
#include <iomanip>
#include <utility>
#include <variant>

#include "annulus/core/error.hpp"
#include "annulus/schedule/pass_actions.hpp"

namespace annulus {

namespace detail {

/// The words of each kind of action.
class ActionText {
 public:
  explicit ActionText(ActionList const& list) : list_(list) {}

  std::string operator()(Pack const& pack) const {
    return message_of(name_of(pack.kind), " ", text(pack.rows), of_heads(pack.heads), " into ", text(pack.into));
  }
  std::string operator()(Take const& take) const {
    return message_of(name_of(take.kind), " from ", text(take.from), " from now on");
  }
  std::string operator()(Delta const& delta) const { return "into " + text(delta.into); }
  std::string operator()(Shift const& shift) const {
    return message_of("exchange ", shift.exchange, ", ", name_of(shift.channel), ": ",
                      sides(shift, "send ", "receive "));
  }
  std::string operator()(Open const& open) const {
    Shift const& shift = open.shift;
    return message_of("window ", shift.exchange, ", ", name_of(shift.channel), ": ", sides(shift, "show ", "see "));
  }
  std::string operator()(Await const& await) const {
    return await.count == 1 ? message_of("exchange ", await.exchange)
                            : message_of("exchanges ", await.exchange, " to ", await.exchange + await.count - 1);
  }
  std::string operator()(Release const& release) const { return message_of("window ", release.exchange); }
  std::string operator()(Reclaim const& reclaim) const { return name_of_slot(reclaim.slot); }
  std::string operator()(annulus::Work const& work) const {
    std::string words = message_of(text("queries", work.queries), " x ",
                                   work.pairs == WorkPairs::joint ? "joint keys" : text("keys", work.keys));
    auto const add = [&](SlotRows const& sums, bool opens, bool closes) {
      if (sums.slot < 0) return;
      words += message_of(opens ? ", opens " : ", adds to ", text(sums), closes ? " and closes it" : "");
    };
    add(work.query_sums, work.opens_queries, work.closes_queries);
    add(work.key_sums, work.opens_keys, work.closes_keys);
    return words;
  }
  std::string operator()(Join const& join) const { return text(join.from) + " into " + text(join.into); }
  std::string operator()(Clear const& clear) const { return text(clear.rows); }
  std::string operator()(Copy const& copy) const { return text(copy.from) + " into " + text(copy.into); }
  std::string operator()(Finish const& finish) const {
    return message_of(text(finish.from), " to result rows ", text(finish.rows), of_heads(finish.heads));
  }
  std::string operator()(Write const& write) const { return text(write.from) + " to results" + of_heads(write.heads); }
  std::string operator()(SinkShare const& share) const {
    return message_of("queries ", text(share.queries), " into ", text(share.into));
  }

 private:
  static std::string_view name_of(GroupRows kind) {
    return kind == GroupRows::queries ? "queries" : kind == GroupRows::keys ? "keys" : "pairs";
  }
  static std::string_view name_of(Channel channel) { return annulus::name_of(channel); }
  static std::string text(RowRange rows) { return message_of("[", rows.begin, ", ", rows.end, ")"); }
  static std::string of_heads(HeadShare const& heads) {
    return heads.of == 1 ? "" : message_of(" of heads ", heads.place + 1, "/", heads.of);
  }
  std::string name_of_slot(int slot) const {
    bool const known = slot >= 0 && static_cast<std::size_t>(slot) < list_.slots.size();
    return known ? annulus::name_of(list_.slots[static_cast<std::size_t>(slot)]) : message_of("no slot ", slot);
  }
  std::string text(SlotRows const& rows) const {
    std::string const node = rows.node == 0 ? "" : message_of(" node ", rows.node);
    return name_of_slot(rows.slot) + " " + text(rows.rows) + node;
  }
  std::string text(std::string_view side, WorkRows const& rows) const {
    return message_of(side, " ", text(rows.rows), " of rank ", rows.owner,
                      rows.from.slot < 0 ? "" : " in " + text(rows.from));
  }
  std::string sides(Shift const& shift, std::string_view send, std::string_view receive) const {
    if (shift.out.slot < 0 && shift.in.slot < 0) return "nothing";
    std::string words;
    std::string const places = shift.hop == 1 ? "one rank" : message_of(shift.hop, " ranks");
    if (shift.out.slot >= 0) words = message_of(send, text(shift.out), " ", places, " on");
    if (shift.in.slot >= 0)
      words += message_of(words.empty() ? "" : ", ", receive, text(shift.in), " from rank ", shift.sender);
    return words;
  }

  ActionList const& list_;
};

/// What there is to know of a slot in addition to its rows and bytes.
inline std::string notes_of(ActionList const& list, Slot const& slot) {
  std::string notes;
  for (PartLayout const& part : slot.layout.parts)
    notes += (notes.empty() ? "" : ", ") + std::string(annulus::name_of(part.part));
  if (slot.nodes > 1) notes += message_of("; ", slot.nodes, " partial results of a row");
  if (slot.storage >= 0)
    notes += "; in the memory of " + annulus::name_of(list.slots[static_cast<std::size_t>(slot.storage)]);
  if (slot.windowed) notes += "; read by other ranks";
  if (slot.rows == 0) notes += "; of another rank";
  return notes;
}

/// Name, rows, bytes and parts of each slot that is used.
inline void print_slots(std::ostream& out, ActionList const& list) {
  std::size_t width = 4;
  for (Slot const& slot : list.slots)
    if (is_used(slot)) width = std::max(width, annulus::name_of(slot).size());
  auto const column = static_cast<int>(width);
  out << "  " << std::left << std::setw(column) << "slot" << std::right << std::setw(8) << "rows" << std::setw(12)
      << "bytes"
      << "  parts\n";
  for (Slot const& slot : list.slots) {
    if (!is_used(slot)) continue;
    out << "  " << std::left << std::setw(column) << annulus::name_of(slot) << std::right << std::setw(8) << slot.rows
        << std::setw(12) << slot.layout.buffer_bytes(slot.rows) << "  " << notes_of(list, slot) << '\n';
  }
}

}  // namespace detail

ANNULUS_INLINE std::string name_of(Slot const& slot) {
  using enum SlotKind;
  bool const numbered = slot.kind == rows || slot.kind == results || slot.kind == rounded || slot.kind == gathered ||
                        slot.kind == group_results || slot.kind == leaving || slot.kind == arriving;
  std::string name(name_of(slot.kind));
  if (numbered) name += " " + std::to_string(slot.number);
  if (slot.lane > 0) name += " of lane " + std::to_string(slot.lane);
  return name;
}

ANNULUS_INLINE bool is_used(Slot const& slot) {
  if (slot.layout.buffer_bytes(slot.rows) > 0) return true;
  bool const refers =
      (slot.kind == SlotKind::rows && slot.number == 2) || (slot.kind == SlotKind::results && slot.number == 4);
  return refers && !slot.layout.empty();
}

ANNULUS_INLINE std::string_view name_of(Action const& action) {
  static constexpr std::array<std::string_view, std::variant_size_v<Action::What>> names{
      "pack", "take", "delta", "shift", "open",   "await", "release",   "reclaim",
      "work", "join", "clear", "copy",  "finish", "write", "sink share"};
  static_assert(!names.back().empty(), "annulus: a name for each kind of action");
  return names[action.what.index()];
}

ANNULUS_INLINE std::string describe(ActionList const& list, Action const& action) {
  return std::visit(detail::ActionText(list), action.what);
}

ANNULUS_INLINE std::string step_name(Action const& action) {
  if (action.step == Action::before_steps) return "before the steps";
  if (action.step == Action::in_group) return "in the group";
  return "step " + std::to_string(action.step);
}

ANNULUS_INLINE void print_actions(std::ostream& out, RingPlan const& plan, Rank rank) {
  ActionList const list = actions_of(plan, rank);
  out << "rank " << rank << " of " << plan.ranks() << ", " << list.actions.size() << " actions\n";
  detail::print_slots(out, list);
  std::string step;
  for (Action const& action : list.actions) {
    if (std::string now = step_name(action); now != step) out << (step = std::move(now)) << ":\n";
    out << "  " << std::left << std::setw(10) << name_of(action) << std::right << ' ' << describe(list, action) << '\n';
  }
}

}  // namespace annulus
#endif
