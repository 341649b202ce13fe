#pragma once
// Actions: what a rank does in a pass, one after the other, on slots. The plan of a rank is a list of them, and that
// list is what runs. An action names the slots that it reads and writes, so that its dependencies follow.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/core/channel.hpp"
#include "annulus/core/index.hpp"
#include "annulus/mask/mask.hpp"
#include "annulus/schedule/payload_layout.hpp"
#include "annulus/sharding/segment.hpp"

namespace annulus {

/// Kinds of rows of operands and results.
enum class GroupRows : std::uint8_t {
  queries,  ///< q and what the backward pass knows of it, or results of queries
  keys,     ///< k and v, or their gradients
  pairs,    ///< of queries, with an element for each key: bias and boolean mask, or the gradient of the bias
};

/// The side whose ranks own the rows.
constexpr Side side_of(GroupRows rows) { return rows == GroupRows::keys ? Side::key : Side::query; }

/// What a slot is for.
enum class SlotKind : std::uint8_t {
  rows,  ///< rows of the side that travels: 0 and 1 alternate, 2 refers to those in another rank's memory
  results,  ///< sums of those rows: 0 of own rows, 1 to 3 on their way, 4 in another rank's memory
  resident,         ///< sums of the side that stays
  delta,            ///< rowsum(dout * output)
  bias_gradient,    ///< sums of the gradient of the bias
  sink_gradients,   ///< a share of the gradient of the sink logits for each rank or leaf, then their sum
  joint_gradients,  ///< a share of the gradients of the joint keys for each rank, then their sum
  rounded,          ///< operands rounded to the wire type: 0 of queries, 1 of keys, 2 dout
  widened,          ///< rows that have arrived in a wire type, in the type of the operands
  gathered,         ///< operands of the ranks of a group, by GroupRows
  group_results,    ///< results for the ranks of a group, by GroupRows
  leaving,          ///< operands for each other rank of a group, by GroupRows
  arriving,         ///< results from each other rank of a group, by GroupRows
  states,           ///< partial results of decode, of this rank and of others
};

constexpr std::string_view name_of(SlotKind kind) {
  constexpr std::string_view names[] = {
      "rows",    "results", "resident sums", "delta",         "bias gradient", "sink gradients", "joint gradients",
      "rounded", "widened", "gathered",      "group results", "leaving",       "arriving",       "states"};
  return names[static_cast<std::size_t>(kind)];
}

/// A buffer of a pass.
struct Slot {
  SlotKind kind{};         ///< what it is for
  int number = 0;          ///< among those of its kind
  int lane = 0;            ///< of the plan; see RingPlan::lanes
  PayloadLayout layout{};  ///< parts of a row
  Index rows = 0;          ///< that it has memory for; 0: it refers to rows in another rank's memory, or is not used
  Index nodes = 1;         ///< partial results of a row, stored as extra batch items
  bool windowed = false;   ///< other ranks read it through windows
  int storage = -1;        ///< the slot whose memory it uses, which is no longer needed then; -1: its own
};

/// Rows of a slot, counted from its first one. `node`: which of several partial results of each row.
struct SlotRows {
  std::int32_t slot = -1;  ///< in ActionList::slots; -1: none
  std::int32_t node = 0;   ///< other than 0 only for partial results of leaves on their way
  RowRange rows{};         ///< of the slot

  constexpr SlotRows() = default;  ///< none
  /// Rows of a slot, or of one of several partial results.
  constexpr SlotRows(int number, RowRange some, int partial = 0) : slot(number), node(partial), rows(some) {}
};

/// Rows of one side that a Work reads, in a slot or, with slot -1, among the operands that this rank works on.
struct WorkRows {
  Rank owner = 0;          ///< rank that works on these rows at step 0
  RowRange rows{};         ///< among those that the owner works on
  SlotRows from{};         ///< where they are
  std::int32_t leaf = -1;  ///< of a reproducible pass
};

/// A share of the heads of an operand, which is cut into equal runs. An operand with one head for all is shared.
struct HeadShare {
  int place = 0;  ///< of the run
  int of = 1;     ///< number of runs
};

/// Copies operands that this rank works on to a slot: its parts, of these rows and heads, converted to the slot's wire
/// type or, in a slot of the operands' own type, rounded to the wire type.
struct Pack {
  GroupRows kind{};   ///< side of the rows
  RowRange rows{};    ///< among the operands
  HeadShare heads{};  ///< all, or those that another rank of the group works on
  SlotRows into{};    ///< where they are copied to
};
/// Later actions read these operands from the slot.
struct Take {
  GroupRows kind{};  ///< side of the rows
  SlotRows from{};   ///< where they are
};
/// Computes rowsum(dout * output) of this rank's queries.
struct Delta {
  SlotRows into{};  ///< where it is written
};
/// Starts to send rows, if `out` is a slot, and to receive rows, if `in` is one. Begins after all actions before it;
/// `in` may be read and `out` be written after its Await.
struct Shift {
  Channel channel{};      ///< shifts of different channels do not match
  int hop = 1;            ///< sends to the rank so many places on, receives from the rank so many places back
  SlotRows out{};         ///< rows that leave
  SlotRows in{};          ///< rows that arrive
  Rank sender = 0;        ///< of `in`
  int exchange = 0;       ///< number, by which an Await names it
  int leaving_code = 0;   ///< of the checksum of `out`: rows of another code fail the check
  int arriving_code = 0;  ///< of the checksum of `in`
  int leaving_slot = 0;   ///< place of the checksum of `out` among those of its slot
  int arriving_slot = 1;  ///< place of the checksum of `in`
  bool sealed = false;    ///< the checksum of `out` has been computed by a Shift before
};
/// Opens a window on `out` for the rank `hop` places on, and asks for the one of the rank `hop` places back, to which
/// `in` refers after its Await. Zero-copy exchange: nothing is copied.
struct Open {
  Shift shift{};  ///< what would be sent
};
/// Later actions begin when these exchanges have ended.
struct Await {
  int exchange = 0;  ///< number of the first
  int count = 1;     ///< of consecutive numbers
};
/// The rows that an awaited window shows are not read any more.
struct Release {
  int exchange = 0;  ///< number of the window
};
/// Later actions begin when no rank reads the slot through a window any more.
struct Reclaim {
  int slot = -1;  ///< in ActionList::slots
};
/// What pairs of rows a Work computes.
enum class WorkPairs : std::uint8_t {
  step,    ///< all visible pairs of the step's rows
  leaves,  ///< those of one leaf of queries and one of keys
  joint,   ///< queries and joint keys
  cached,  ///< queries and this rank's pages of a cache
};
/// Adds the visible pairs of these rows: to the running state of the queries, or to the gradients of both sides.
struct Work {
  WorkPairs pairs{};            ///< which pairs of these rows
  WorkRows queries{};           ///< query rows
  WorkRows keys{};              ///< key rows
  SlotRows query_sums{};        ///< running state, or dq
  SlotRows key_sums{};          ///< dk and dv
  bool opens_queries = false;   ///< the sums of the queries hold nothing yet
  bool opens_keys = false;      ///< those of the keys hold nothing yet
  bool closes_queries = false;  ///< nothing is added to the sums of the queries any more: results may be written
  bool closes_keys = false;     ///< nothing is added to those of the keys any more
  Index multiply_adds = 0;      ///< planned; of several Works of a step the first one has all
};
/// Adds sums to others of the same rows: partial states by the merge rule, gradients by addition.
struct Join {
  SlotRows into{};  ///< sums that are added to
  SlotRows from{};  ///< sums that are added
};
/// Resets sums to empty ones.
struct Clear {
  SlotRows rows{};  ///< the sums
};
/// Copies rows to another slot with the same parts, widened where their types differ.
struct Copy {
  SlotRows from{};  ///< rows that are read
  SlotRows into{};  ///< rows that are written
};
/// Computes results from sums: normalises a state, or converts gradients to the type of the results.
struct Finish {
  SlotRows from{};    ///< the sums
  RowRange rows{};    ///< of the results
  HeadShare heads{};  ///< of the results
};
/// Copies results that another rank of the group, or this one, has finished.
struct Write {
  SlotRows from{};    ///< where they are
  HeadShare heads{};  ///< of the results
};
/// Computes a share of the gradient of the sink logits.
struct SinkShare {
  RowRange queries{};  ///< of this rank, that it is computed from
  SlotRows into{};     ///< where it is written
};

/// When in a step an action takes place.
enum class Phase : std::uint8_t {
  prepare,        ///< before the steps
  fetch,          ///< the exchange of the next step's rows starts
  compute,        ///< work on the rows of the step
  await_results,  ///< results that left after the step before have arrived
  join_results,   ///< they are joined to those of the same rows
  send_results,   ///< the exchange of this step's results starts
  await_rows,     ///< rows of the next step have arrived
  finish,         ///< results are written
};

/// An action of the list.
struct Action {
  /// What is done.
  using What = std::variant<Pack, Take, Delta, Shift, Open, Await, Release, Reclaim, Work, Join, Clear, Copy, Finish,
                            Write, SinkShare>;

  static constexpr int before_steps = -1;  ///< step of an action outside of steps
  static constexpr int in_group = -2;      ///< step of an exchange between the ranks of a group

  int step = before_steps;  ///< of the ring
  Phase phase{};            ///< of the step
  std::uint8_t lane = 0;    ///< of the plan; see RingPlan::lanes
  What what{};              ///< one of the kinds of actions
};

/// The plan of one rank.
struct ActionList {
  std::vector<Slot> slots;      ///< by number
  std::vector<Action> actions;  ///< in the order in which they are performed
  int exchanges = 0;            ///< numbers of exchanges are below this
  int steps = 0;                ///< of the pass

  /// Number of a slot; -1: there is none.
  int find(SlotKind kind, int number, int lane = 0) const {
    auto const same = [&](Slot const& one) { return one.kind == kind && one.number == number && one.lane == lane; };
    auto const found = std::find_if(slots.begin(), slots.end(), same);
    return found == slots.end() ? -1 : static_cast<int>(found - slots.begin());
  }
};

namespace detail {

inline constexpr std::array all_group_rows{GroupRows::queries, GroupRows::keys, GroupRows::pairs};
constexpr std::size_t index_of(GroupRows rows) { return static_cast<std::size_t>(rows); }

/// A value of the queries and one of the keys.
template <class T>
struct BySide {
  T queries, keys;
};

/// A value of the side that stays and one of the side that travels, by side.
template <class T>
constexpr BySide<T> by_side(bool keys_rotate, T const& stays, T const& travels) {
  return keys_rotate ? BySide<T>{stays, travels} : BySide<T>{travels, stays};
}

/// Rows counted from `first`.
constexpr RowRange from_first(RowRange rows, Index first) { return {rows.begin - first, rows.end - first}; }
/// All of `count` rows.
constexpr RowRange all_rows(Index count) { return {0, count}; }

/// Appends the actions of one lane to the list of a rank.
class ActionWriter {
 public:
  ActionWriter(ActionList& list, int lane) : list_(&list), lane_(static_cast<std::uint8_t>(lane)) {}

  /// Step and phase of the actions that follow.
  void at(int step, Phase phase) {
    step_ = step;
    phase_ = phase;
  }
  void put(Action::What const& what) { list_->actions.push_back({step_, phase_, lane_, what}); }
  /// Number of the exchange that is written next.
  int next_exchange() const { return list_->exchanges; }
  /// Numbers for `count` exchanges that may be pending at the same time.
  int exchanges(int count) { return std::exchange(list_->exchanges, list_->exchanges + count); }

 private:
  ActionList* list_;
  std::uint8_t lane_;
  int step_ = Action::before_steps;
  Phase phase_{};
};

}  // namespace detail

}  // namespace annulus
