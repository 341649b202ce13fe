#pragma once
// Abstract machine for lists of actions: slots whose rows hold names instead of data, and exchanges between all ranks.
// It finds rows that are read or written at the wrong time, and exchanges that do not match. See check_plan.hpp.

#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/check/expected_sums.hpp"
#include "annulus/schedule/print_actions.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

struct PlanFault {
  std::string text;
};

/// The name of a slot, made when it is written.
struct SlotName {
  Slot const& slot;

  friend std::ostream& operator<<(std::ostream& out, SlotName const& name) { return out << name_of(name.slot); }
};

/// What a row of a slot holds.
struct HeldRow {
  enum Kind : std::uint8_t { nothing, operand, sums, result };

  Kind kind = nothing;
  bool closed = false;  ///< results of the sums may have been written
  bool used = false;    ///< since the last addition
  RowName name{};
  Seen seen{};
};

/// Why a row of a slot, or a checksum, must not be written.
struct Locks {
  int sent = 0;           ///< exchanges that send it
  bool arriving = false;  ///< an exchange writes it
  bool shared = false;    ///< other ranks may read it through windows
};
struct SlotRow : Locks {
  HeldRow held{};
};
struct Checksum : Locks {
  int code = -1;
  RowRange rows{};
};

struct SlotState {
  Slot const* slot = nullptr;
  Index rows = 0;
  bool closed = false;              ///< a Work has closed sums in it
  bool bound = false;               ///< refers to rows in another rank's memory
  std::vector<SlotRow> contents{};  ///< [row, node]
  std::vector<Checksum> checksums{};
};

/// An exchange that a rank has started.
struct ExchangeState {
  Shift const* shift = nullptr;  ///< null: none
  std::size_t number = 0;        ///< in its stream
  bool window = false, awaited = false;

  std::size_t stream() const { return static_cast<std::size_t>(shift->channel) + (window ? 3 : 0); }
};

/// One rank's side of an exchange of all ranks.
struct Posting {
  Shift const* shift = nullptr;  ///< null: not started
  PayloadLayout const *out = nullptr, *in = nullptr;
  int lane = 0;
  std::vector<HeldRow> rows{};             ///< that leave
  bool awaited = false, released = false;  ///< by the reader
};
struct Meeting {
  int hop = 0;
  std::vector<Posting> postings{};  ///< by rank
};

/// The slots and exchanges of a rank.
struct RankSlots {
  Rank rank = 0;
  ActionList const* list = nullptr;
  std::size_t next = 0;  ///< action
  std::vector<SlotState> slots{};
  std::vector<ExchangeState> exchanges{};
  std::vector<ExchangeState> shown{};    ///< windows that have not been reclaimed
  std::array<std::size_t, 6> started{};  ///< exchanges of each stream
  Index bytes = 0;                       ///< sent
};

/// The slots and exchanges of all ranks; the members act for the current one.
class SlotMachine {
 public:
  SlotMachine(RingPlan const& plan, std::vector<ActionList> const& lists) : plan_(plan) {
    for (ActionList const& list : lists) add_rank(list);
  }

 protected:
  RankSlots& here() { return ranks_[static_cast<std::size_t>(rank_)]; }
  Action const& action() { return here().list->actions[here().next]; }

  template <class... Parts>
  void require(bool condition, Parts const&... parts) {
    if (!condition) fail(parts...);
  }
  template <class... Parts>
  [[noreturn]] void fail(Parts const&... parts) {
    throw PlanFault{place() + ": " + message_of(parts...)};
  }
  /// The current action in words.
  std::string place() {
    if (here().next == here().list->actions.size()) return message_of("rank ", rank_, ", at the end");
    return message_of("rank ", rank_, ", action ", here().next, " (", step_name(action()), ": ", name_of(action()), " ",
                      describe(*here().list, action()), ")");
  }

  SlotState& state(int slot) {
    require(slot >= 0 && static_cast<std::size_t>(slot) < here().slots.size(), "there is no slot ", slot);
    return here().slots[static_cast<std::size_t>(slot)];
  }
  SlotState& state(SlotRows const& rows) {
    SlotState& found = state(rows.slot);
    bool const fits = rows.rows.empty() || (0 <= rows.rows.begin && rows.rows.end <= found.rows);
    require(fits, "rows [", rows.rows.begin, ", ", rows.rows.end, ") of ", SlotName{*found.slot}, ", which has ",
            found.rows);
    require(0 <= rows.node && rows.node < found.slot->nodes, "node ", rows.node, " of ", found.slot->nodes);
    return found;
  }
  /// The rows with their node or, for exchanges, with all nodes.
  std::vector<SlotRow*> rows_of(SlotRows const& rows, bool all_nodes = false) {
    SlotState& found = state(rows);
    std::vector<SlotRow*> list;
    Index const nodes = found.slot->nodes;
    for (Index row = rows.rows.begin; row < rows.rows.end; ++row)
      for (Index node = all_nodes ? 0 : rows.node; node < (all_nodes ? nodes : rows.node + 1); ++node)
        list.push_back(&found.contents[static_cast<std::size_t>(row * nodes + node)]);
    return list;
  }
  std::vector<SlotRow*> rows_to_write(SlotRows const& rows, bool all_nodes = false) {
    require(!state(rows).bound, "writes to rows in another rank's memory");
    for (SlotState& other : here().slots)
      if (&other != &state(rows) && memory_of(other) == memory_of(state(rows)))
        for (SlotRow& lost : other.contents) put(lost, {});
    return rows_of(rows, all_nodes);
  }

  HeldRow const& read(SlotRow const& row) {
    require(!row.arriving, "reads rows that have not been awaited");
    require(row.held.kind != HeldRow::nothing, "reads rows to which nothing has been written");
    return row.held;
  }
  HeldRow& read_sums(SlotRow& row, bool may_be_closed = false) {
    require(read(row).kind == HeldRow::sums, "reads sums where there are none");
    require(may_be_closed || !row.held.closed, "reads sums that have been closed");
    row.held.used = true;
    return row.held;
  }
  HeldRow& write(SlotRow& row) {
    require_unlocked(row, "rows");
    return row.held;
  }
  void put(SlotRow& row, HeldRow const& held) {
    HeldRow& old = write(row);
    bool const lost = old.kind == HeldRow::sums && !old.used && !old.closed && old.seen.count > 0;
    require(!lost, "overwrites sums of ", old.name, " that nothing has used");
    old = held;
  }

  void start(Shift const& shift, bool window) {
    require(1 <= shift.hop && shift.hop < plan_.ranks(), "a hop of ", shift.hop, " on ", plan_.ranks(), " ranks");
    ExchangeState& exchange = exchange_of(shift.exchange);
    require(!exchange.shift, "exchange ", shift.exchange, " has not ended when it is started again");
    exchange = {&shift, 0, window, false};
    exchange.number = here().started[exchange.stream()]++;
    auto& stream = streams_[exchange.stream()];
    auto const ranks = static_cast<std::size_t>(plan_.ranks());
    if (exchange.number == stream.size()) stream.push_back({shift.hop, std::vector<Posting>(ranks)});
    Meeting& meeting = stream[exchange.number];
    require(meeting.hop == shift.hop, "exchange ", exchange.number, " of the channel has hop ", shift.hop,
            ", another rank has started it with hop ", meeting.hop);
    Posting& mine = posting(exchange, 0);
    mine.shift = &shift;
    mine.lane = action().lane;
    if (shift.out.slot >= 0) leave(exchange, mine);
    if (shift.in.slot >= 0) expect(exchange, mine);
    compare(mine, posting(exchange, shift.hop));
    compare(posting(exchange, -shift.hop), mine);
  }
  /// Returns false if a peer has not started its side.
  bool await(Await const& await) {
    for (int e = await.exchange; e < await.exchange + await.count; ++e) {
      ExchangeState const& exchange = exchange_of(e);
      require(exchange.shift && !exchange.awaited, "exchange ", e, " has not been started");
      int const hop = exchange.shift->hop;
      if (!posting(exchange, -hop).shift || (!exchange.window && !posting(exchange, hop).shift)) return false;
    }
    for (int e = await.exchange; e < await.exchange + await.count; ++e) arrive(exchange_of(e));
    return true;
  }
  void release(Release const& release) {
    ExchangeState& exchange = exchange_of(release.exchange);
    require(exchange.shift && exchange.window && exchange.awaited, "no window has been awaited");
    posting(exchange, -exchange.shift->hop).released = true;
    if (exchange.shift->in.slot >= 0) {
      SlotState& in = state(exchange.shift->in.slot);
      in = {.slot = in.slot};
    }
    exchange = {};
  }
  /// Returns false if a reader has not released its window.
  bool reclaim(Reclaim const& reclaim) {
    SlotState& slot = state(reclaim.slot);
    auto const on_slot = [&](ExchangeState const& one) { return one.shift->out.slot == reclaim.slot; };
    for (ExchangeState const& one : here().shown)
      if (on_slot(one) && !posting(one, 0).released) return false;
    std::erase_if(here().shown, on_slot);
    for (SlotRow& row : slot.contents) row.shared = false;
    for (Checksum& checksum : slot.checksums) checksum.shared = false;
    return true;
  }

  RingPlan const& plan_;
  Rank rank_ = 0;  ///< the current one
  std::vector<RankSlots> ranks_;
  std::array<std::vector<Meeting>, 6> streams_;  ///< messages, then windows, by channel

 private:
  void add_rank(ActionList const& list) {
    RankSlots& rank = ranks_.emplace_back();
    rank.rank = static_cast<Rank>(ranks_.size()) - 1;
    rank.list = &list;
    rank.exchanges.resize(static_cast<std::size_t>(list.exchanges));
    for (Slot const& slot : list.slots) {
      SlotState& state = rank.slots.emplace_back();
      state.slot = &slot;
      state.rows = slot.rows;
      // Ranks may still read what an earlier call has shown them.
      Locks const locks{.shared = slot.windowed};
      state.contents.resize(static_cast<std::size_t>(state.rows * slot.nodes), {locks});
      state.checksums.resize(static_cast<std::size_t>(slot.layout.checksums), {locks});
    }
  }
  std::ptrdiff_t memory_of(SlotState const& state) {
    return state.slot->storage >= 0 ? state.slot->storage : state.slot - here().list->slots.data();
  }
  ExchangeState& exchange_of(int number) {
    require(number >= 0 && static_cast<std::size_t>(number) < here().exchanges.size(), "there is no exchange ", number);
    return here().exchanges[static_cast<std::size_t>(number)];
  }
  /// The side of the rank that many places on.
  Posting& posting(ExchangeState const& exchange, int places) {
    auto const rank = static_cast<std::size_t>(rank_at(rank_ + places, plan_.ranks()));
    return streams_[exchange.stream()][exchange.number].postings[rank];
  }
  void require_unlocked(Locks const& locks, char const* what) {
    require(locks.sent == 0, "overwrites ", what, " that are being sent");
    require(!locks.arriving, "overwrites ", what, " that are to arrive");
    require(!locks.shared, "overwrites ", what, " that other ranks may read: the slot has not been reclaimed");
  }

  void leave(ExchangeState const& exchange, Posting& mine) {
    Shift const& shift = *exchange.shift;
    SlotState& out = state(shift.out);
    require(!exchange.window || out.slot->windowed, "other ranks cannot read the slot");
    mine.out = &out.slot->layout;
    for (SlotRow* row : rows_of(shift.out, true)) {
      require(!read(*row).closed, "sends sums that have been closed");
      row->held.used = true;
      mine.rows.push_back(row->held);
      lock(*row, exchange);
    }
    here().bytes += shift.out.rows.size() * out.slot->layout.bytes_per_row();
    if (exchange.window && !shift.out.rows.empty()) here().shown.push_back(exchange);
    if (exchange.window) require_few_windows(exchange);
    if (out.checksums.empty() || shift.out.rows.empty()) return;
    Checksum& checksum = checksum_of(out, shift.leaving_slot);
    if (!shift.sealed) {
      require_unlocked(checksum, "checksums");
      checksum.code = shift.leaving_code;
      checksum.rows = shift.out.rows;
    }
    require(checksum.code == shift.leaving_code && checksum.rows == shift.out.rows, "the checksum is of other rows");
    lock(checksum, exchange);
  }
  /// Windows to the same reader that it has not awaited.
  void require_few_windows(ExchangeState const& latest) {
    auto const& stream = streams_[latest.stream()];
    std::size_t open = 0;
    for (Meeting const& meeting : stream)
      if (meeting.hop == latest.shift->hop) {
        Posting const& mine = meeting.postings[static_cast<std::size_t>(rank_)];
        open += mine.shift && mine.shift->out.slot >= 0 && !mine.awaited;
      }
    require(open <= max_open_windows, "more than ", max_open_windows, " open windows to a rank");
  }
  static void lock(Locks& locks, ExchangeState const& exchange) {
    if (exchange.window)
      locks.shared = true;
    else
      ++locks.sent;
  }
  void expect(ExchangeState const& exchange, Posting& mine) {
    Shift const& shift = *exchange.shift;
    Rank const sender = rank_at(rank_ - shift.hop, plan_.ranks());
    require(shift.sender == sender, "the rows come from rank ", sender, ", expected are those of rank ", shift.sender);
    mine.in = &state(shift.in.slot).slot->layout;
    if (exchange.window) return;
    for (SlotRow* row : rows_to_write(shift.in, true)) {
      put(*row, {});
      row->arriving = true;
    }
    SlotState& in = state(shift.in);
    if (in.checksums.empty() || shift.in.rows.empty()) return;
    Checksum& checksum = checksum_of(in, shift.arriving_slot);
    require_unlocked(checksum, "checksums");
    checksum.arriving = true;
  }
  Checksum& checksum_of(SlotState& slot, int place) {
    auto const count = static_cast<Index>(slot.checksums.size());
    require(0 <= place && place < count, "checksum ", place, " of ", count);
    return slot.checksums[static_cast<std::size_t>(place)];
  }

  /// Compares what a rank sends with what its peer expects, if both have started.
  void compare(Posting const& from, Posting const& to) {
    if (!from.shift || !to.shift) return;
    Shift const &sent = *from.shift, &expected = *to.shift;
    require((sent.out.slot >= 0) == (expected.in.slot >= 0), "one of the two ranks sends no rows, or expects none");
    if (sent.out.slot < 0) return;
    require(sent.out.rows.size() == expected.in.rows.size(), sent.out.rows.size(), " rows are sent, ",
            expected.in.rows.size(), " are expected");
    bool same = from.out->checksums == to.in->checksums && from.out->parts.size() == to.in->parts.size();
    for (std::size_t p = 0; same && p < from.out->parts.size(); ++p)
      same = from.out->parts[p].part == to.in->parts[p].part &&
             from.out->parts[p].row_bytes() == to.in->parts[p].row_bytes();
    require(same, "other parts are sent than are expected");
    require(sent.leaving_code == expected.arriving_code && from.lane == to.lane, "the checksum is of exchange ",
            sent.leaving_code, " of lane ", from.lane, ", expected is that of exchange ", expected.arriving_code,
            " of lane ", to.lane);
  }

  void arrive(ExchangeState& exchange) {
    Shift const& shift = *exchange.shift;
    std::vector<HeldRow> const& rows = posting(exchange, -shift.hop).rows;
    exchange.awaited = posting(exchange, -shift.hop).awaited = true;
    if (exchange.window) return bind(shift, rows);
    if (shift.out.slot >= 0) {
      for (SlotRow* row : rows_of(shift.out, true)) --row->sent;
      SlotState& out = state(shift.out);
      if (!out.checksums.empty() && !shift.out.rows.empty()) --checksum_of(out, shift.leaving_slot).sent;
    }
    if (shift.in.slot >= 0) {
      std::size_t next = 0;
      for (SlotRow* row : rows_of(shift.in, true)) take(*row, rows[next++]);
      SlotState& in = state(shift.in);
      if (!in.checksums.empty() && !shift.in.rows.empty()) checksum_of(in, shift.arriving_slot).arriving = false;
    }
    exchange = {};
  }
  static void take(SlotRow& row, HeldRow const& arrived) {
    row = {{}, arrived};
    row.held.used = false;
  }
  /// The slot refers to the rows of a window.
  void bind(Shift const& shift, std::vector<HeldRow> const& rows) {
    if (shift.in.slot < 0) return;
    SlotState& in = state(shift.in.slot);
    require(!in.bound && in.slot->rows == 0, "the slot has not been released");
    require(shift.in.rows.empty() || shift.in.rows.begin == 0, "the first row of a window is row 0");
    in.bound = true;
    in.rows = shift.in.rows.size();
    in.contents.resize(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) take(in.contents[i], rows[i]);
  }
};

}  // namespace annulus::detail
