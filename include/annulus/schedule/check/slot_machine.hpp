#pragma once
// Abstract machine for the lists of actions of all ranks: their slots, exchanges and sums. What a list works on and
// must finish is left to the machines of check_plan.hpp and check_cache.hpp.

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "annulus/schedule/action.hpp"
#include "annulus/schedule/check/rows.hpp"
#include "annulus/schedule/plan_request.hpp"
#include "annulus/schedule/print_actions.hpp"

namespace annulus::detail::checker {

struct SlotState {
  Slot const* slot = nullptr;
  Index rows = 0;
  bool bound = false;               ///< refers to rows in another rank's memory
  std::vector<SlotRow> contents{};  ///< [row, node], then the checksums
};

struct RankState {
  ActionList const* list = nullptr;
  std::size_t next = 0;  ///< action
  std::vector<SlotState> slots{};
  std::array<std::size_t, 2 * num_channels> started{};  ///< exchanges of each channel
  std::vector<Exchange*> exchanges{};                   ///< by their number in the list; null: not pending
  std::vector<Exchange*> shown{};                       ///< windows that have not been reclaimed
  std::map<RowName, int> results{};                     ///< times that each one is finished
  Index bytes = 0;                                      ///< sent
  Index multiply_adds = 0;                              ///< that works say they make
};

/// The state of all ranks; the members act for the current one.
class SlotMachine {
 public:
  SlotMachine(PlanRequest const& request, std::vector<ActionList> const& lists) : request_(request) {
    for (ActionList const& list : lists) add_rank(list);
  }
  virtual ~SlotMachine() = default;

  void operator()(Shift const& shift) { start(shift, false); }
  void operator()(Open const& open) { start(open.shift, true); }
  void operator()(Await const& await) {
    for (int e = await.exchange; e < await.exchange + await.count; ++e) end(exchange_of(e));
  }
  void operator()(Release const& release) {
    Exchange*& exchange = exchange_of(release.exchange);
    require(exchange && exchange->window && exchange->sender(rank_).awaited, "no window has been awaited");
    exchange->sender(rank_).released = true;
    int const in = exchange->of(rank_).shift->in.slot;
    if (in >= 0) state(in) = {.slot = state(in).slot};
    exchange = nullptr;
  }
  void operator()(Reclaim const& reclaim) {
    std::erase_if(here().shown, [&](Exchange* one) { return one->of(rank_).shift->out.slot == reclaim.slot; });
    for (SlotRow& row : state(reclaim.slot).contents) row.shared = false;
  }
  void operator()(Pack const& pack) {
    RowNames packed;
    require_count(rows_of(pack.into).size(), static_cast<std::size_t>(pack.rows.size()));
    for (PartLayout const& part : slot(pack.into).layout.parts) {
      RowNames const names = of_heads(operands(pack.kind, part.part, pack.rows), pack.heads);
      if (packed.empty()) packed = names;
      require_names(names, packed, "packs");
    }
    put_names(pack.into, packed);
  }
  void operator()(Copy const& copy) {
    auto const from = rows_of(copy.from), into = rows_to_write(copy.into);
    require_count(from.size(), into.size());
    for (std::size_t i = 0; i < from.size(); ++i) into[i]->put(from[i]->read());
  }
  void operator()(Clear const& clear) {
    for (SlotRow* row : rows_to_write(clear.rows)) row->put({.kind = Content::sums});
  }
  void operator()(Join const& join) {
    auto const from = rows_of(join.from), into = rows_to_write(join.into);
    require_count(from.size(), into.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      require(from[i] != into[i], "joins rows with themselves");
      into[i]->add(from[i]->held.name, from[i]->read_sums().seen);
    }
  }

  /// Performs all lists to their end. Every rank acts until it waits; rank 0 makes one action when all others wait, so
  /// that they are as far ahead of it as they can be. If all wait, none can go on.
  std::optional<std::string> find_fault() {
    try {
      for (bool moved = true; moved;) {
        moved = false;
        for (rank_ = 1; rank_ < ranks(); ++rank_)
          while (perform()) moved = true;
        rank_ = 0;
        moved = moved || perform();
      }
      std::string waiting;
      for (rank_ = 0; rank_ < ranks(); ++rank_)
        if (has_action()) waiting += (waiting.empty() ? "" : "; ") + place();
      if (!waiting.empty()) return "these ranks wait for each other, or for actions that are missing: " + waiting;
      for (rank_ = 0; rank_ < ranks(); ++rank_) require_end();
    } catch (PlanFault const& fault) {
      return place() + ": " + fault.what();
    }
    return std::nullopt;
  }

 protected:
  virtual void perform_action() = 0;
  /// Names of rows of an operand that this rank works on.
  virtual RowNames operands(GroupRows kind, Part part, RowRange rows) = 0;
  /// At the end of a rank.
  virtual void require_end() {
    for (std::size_t e = 0; e < here().exchanges.size(); ++e)
      require(!here().exchanges[e], "exchange ", e, " is still pending");
    for (std::size_t c = 0; c < channels_.size(); ++c)
      require(here().started[c] == channels_[c].size(), "has started ", here().started[c],
              " exchanges of a channel, other ranks ", channels_[c].size());
    for (SlotState const& one : here().slots)
      for (SlotRow const& row : one.contents)
        if (row.held.is_unused_sum() && one.slot->layout.bytes_per_row() > 0)
          require(false, "sums of ", row.held.name, " in ", name_of(*one.slot), " have not been used");
    auto const& results = here().results;
    auto const missing = std::count_if(results.begin(), results.end(), [](auto const& one) { return one.second == 0; });
    require(missing == 0, "rows of results are not finished: ", missing, " of ", results.size());
  }

  int ranks() const { return static_cast<int>(ranks_.size()); }
  RankState& here() { return at(ranks_, rank_); }
  Action const& action() { return here().list->actions[here().next]; }

  SlotState& state(int number) {
    require(number >= 0 && number < std::ssize(here().slots), "there is no slot ", number);
    return at(here().slots, number);
  }
  Slot const& slot(SlotRows const& rows) { return *state(rows.slot).slot; }
  /// The rows with their node or, for exchanges, with all nodes.
  std::vector<SlotRow*> rows_of(SlotRows const& rows, bool all_nodes = false) {
    SlotState& found = state(rows.slot);
    Index const nodes = found.slot->nodes, first = all_nodes ? 0 : rows.node, end = all_nodes ? nodes : first + 1;
    if (!rows.rows.empty() && (rows.rows.begin < 0 || rows.rows.end > found.rows))
      require(false, text(rows.rows), " of ", name_of(*found.slot), ", which has ", found.rows);
    require(0 <= first && end <= nodes, "node ", first, " of ", nodes);
    std::vector<SlotRow*> list;
    for (Index row = rows.rows.begin; row < rows.rows.end; ++row)
      for (Index node = first; node < end; ++node) list.push_back(&at(found.contents, row * nodes + node));
    return list;
  }
  /// What other slots in the same memory hold is lost.
  std::vector<SlotRow*> rows_to_write(SlotRows const& rows, bool all_nodes = false) {
    auto const list = rows_of(rows, all_nodes);
    SlotState& written = state(rows.slot);
    require(!written.bound, "writes to rows in another rank's memory");
    for (SlotState& other : here().slots)
      if (&other != &written && memory_of(other) == memory_of(written))
        for (SlotRow& lost : other.contents) lost.put({});
    return list;
  }
  /// Names of rows that have this part, in the type of the operands.
  RowNames names_in(SlotRows const& rows, Part part) {
    PayloadLayout const& layout = slot(rows).layout;
    require(layout.has(part) && is_stored(layout.parts[layout.find(part)]), "the rows lack ", name_of(part),
            " in the type of the operands");
    RowNames names;
    for (SlotRow* row : rows_of(rows)) {
      require(row->read().kind == Content::row, "reads sums as ", name_of(part));
      names.push_back(row->held.name);
    }
    return names;
  }
  bool is_stored(PartLayout const& part) const {
    return !has_wire_type(part.part) || part.element_bytes == request_.element_bytes;
  }
  static std::string text(RowRange rows) { return message_of("rows [", rows.begin, ", ", rows.end, ")"); }

  bool backward() const { return request_.pass == Pass::backward; }
  static RowNames of_heads(RowNames names, HeadShare const& heads) {
    for (RowName& name : names)
      if (heads.of > 1) name.share = heads.place + 1;
    return names;
  }
  void put_names(SlotRows const& into, RowNames const& names) {
    auto const rows = rows_to_write(into);
    require_count(rows.size(), names.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      require(names[i].kind != RowName::unknown, "writes rows that its operands lack");
      rows[i]->put({.kind = Content::row, .name = names[i]});
    }
  }
  /// What a Work reads of a side has these names, in a slot or among the operands.
  void require_operands(GroupRows kind, WorkRows const& rows, RowNames const& names) {
    for (Part part : parts_of(kind))
      require_names(rows.from.slot < 0 ? operands(kind, part, rows.from.rows) : names_in(rows.from, part), names);
  }
  void add(SlotRows const& sums, Part part, RowNames const& names, std::vector<Seen> const& seen, bool opens = false,
           bool closes = false) {
    auto const rows = rows_to_write(sums);
    require(slot(sums).layout.has(part), "the slot has no sums of ", name_of(part));
    require(rows.size() == names.size(), "adds ", names.size(), " rows to ", rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (opens) rows[i]->put({.kind = Content::sums});
      rows[i]->add(names[i], seen[i]);
      rows[i]->held.closed = closes;
    }
  }
  /// This rank must finish these rows of results.
  void expect_results(RowNames const& names) {
    for (RowName const& name : names) here().results.insert({name, 0});
  }
  static void require_planned(char const* verb, Index found, char const* what, Index planned) {
    require(found == planned, verb, found, what, ", planned are ", planned);
  }
  /// Copies rows to results.
  void write_results(SlotRows const& rows, Part part, RowNames const& names) {
    require_names(names_in(rows, part), names, "writes");
    count_results(names);
  }
  void count_results(RowNames const& names) {
    for (RowName const& name : names) {
      auto const found = here().results.find(name);
      require(found != here().results.end(), name, " is no result of this rank");
      require(++found->second == 1, name, " is finished a second time");
    }
  }

  PlanRequest const& request_;
  Rank rank_ = 0;  ///< the current one
  std::vector<RankState> ranks_;

 private:
  void add_rank(ActionList const& list) {
    RankState& rank = ranks_.emplace_back();
    rank.list = &list;
    rank.exchanges.resize(static_cast<std::size_t>(list.exchanges));
    for (Slot const& one : list.slots) {
      // Ranks may still read what an earlier call has shown them.
      auto const rows = static_cast<std::size_t>(one.rows * one.nodes + one.layout.checksums);
      rank.slots.push_back({&one, one.rows, false, std::vector(rows, SlotRow{.shared = one.windowed})});
    }
  }
  std::ptrdiff_t memory_of(SlotState const& one) {
    return one.slot->storage >= 0 ? one.slot->storage : one.slot - here().list->slots.data();
  }
  std::vector<Part> parts_of(GroupRows kind) const {
    std::vector<Part> parts;
    if (kind == GroupRows::keys) parts = {Part::k, Part::v};
    if (kind == GroupRows::queries) parts = {Part::q};
    if (kind == GroupRows::queries && backward())
      parts = {Part::q, Part::dout, Part::lse, Part::lse_remainder, Part::delta};
    if (kind != GroupRows::pairs && request_.document_ids) parts.push_back(Part::document_ids);
    if (kind == GroupRows::pairs && request_.bias.heads > 0) parts.push_back(Part::bias);
    if (kind == GroupRows::pairs && request_.mask.heads > 0) parts.push_back(Part::boolean_mask);
    return parts;
  }

  bool has_action() { return here().next < here().list->actions.size(); }
  /// False at the end, and for an action that waits for another rank.
  bool perform() {
    if (!has_action() || waits()) return false;
    perform_action();
    ++here().next;
    return true;
  }
  bool waits() {
    bool waiting = false;
    if (auto const* await = std::get_if<Await>(&action().what))
      for (int e = await->exchange; e < await->exchange + await->count; ++e) {
        Exchange* const exchange = exchange_of(e);
        require(exchange && !exchange->sender(rank_).awaited, "exchange ", e, " has not been started");
        waiting = waiting || !exchange->can_end(rank_);
      }
    if (auto const* open = std::get_if<Open>(&action().what)) waiting = has_most_windows(open->shift);
    if (auto const* reclaim = std::get_if<Reclaim>(&action().what))
      for (Exchange* one : here().shown)
        waiting = waiting || (one->of(rank_).shift->out.slot == reclaim->slot && !one->of(rank_).released);
    return waiting;
  }
  /// The reader has not awaited as many windows as a communicator need have.
  bool has_most_windows(Shift const& shift) {
    auto const is_open = [&](Exchange& one) {
      return one.hop == shift.hop && one.of(rank_).out && !one.of(rank_).awaited;
    };
    auto& windows = channels_[static_cast<std::size_t>(shift.channel) + first_window];
    return std::count_if(windows.begin(), windows.end(), is_open) >= static_cast<std::ptrdiff_t>(max_open_windows);
  }
  /// The current action in words.
  std::string place() {
    if (!has_action()) return message_of("rank ", rank_, ", at the end");
    return message_of("rank ", rank_, ", action ", here().next, " (", step_name(action()), ": ", name_of(action()), " ",
                      describe(*here().list, action()), ")");
  }
  Exchange*& exchange_of(int number) {
    require(number >= 0 && number < std::ssize(here().exchanges), "there is no exchange ", number);
    return at(here().exchanges, number);
  }
  void start(Shift const& shift, bool window) {
    require(1 <= shift.hop && shift.hop < ranks(), "a hop of ", shift.hop, " on ", ranks(), " ranks");
    Exchange*& exchange = exchange_of(shift.exchange);
    require(!exchange, "exchange ", shift.exchange, " has not ended when it is started again");
    std::size_t const c = static_cast<std::size_t>(shift.channel) + (window ? first_window : 0),
                      number = here().started[c]++;
    if (number == channels_[c].size()) channels_[c].push_back({window, shift.hop, std::vector<Posting>(ranks_.size())});
    exchange = &channels_[c][number];
    require(exchange->hop == shift.hop, "exchange ", number, " of the channel has hop ", shift.hop,
            ", another rank has started it with hop ", exchange->hop);
    Posting& mine = exchange->of(rank_);
    mine.shift = &shift;
    mine.lane = action().lane;
    if (shift.out.slot >= 0) leave(*exchange, mine);
    if (shift.in.slot >= 0) expect(*exchange, mine);
    compare(mine, exchange->reader(rank_));
    compare(exchange->sender(rank_), mine);
  }
  void leave(Exchange& exchange, Posting& mine) {
    Shift const& shift = *mine.shift;
    mine.leaving = rows_of(shift.out, true);
    mine.out = &slot(shift.out);
    require(!exchange.window || mine.out->windowed, "other ranks cannot read the slot");
    for (SlotRow* row : mine.leaving) row->read("sends");
    here().bytes += shift.out.rows.size() * mine.out->layout.bytes_per_row();
    if (SlotRow* const sum = checksum_of(shift.out, shift.leaving_slot)) {
      if (!shift.sealed) sum->put({.checksum = &shift});
      Shift const* const of = sum->held.checksum;
      bool const same = of && of->leaving_code == shift.leaving_code && of->out.rows == shift.out.rows;
      require(same, "the checksum is of other rows");
      mine.leaving.push_back(sum);
    }
    for (SlotRow* row : mine.leaving) {
      mine.sent.push_back(row->held);
      exchange.window ? row->shared = true : ++row->sent;
    }
    if (exchange.window && !shift.out.rows.empty()) here().shown.push_back(&exchange);
  }
  void expect(Exchange const& exchange, Posting& mine) {
    Shift const& shift = *mine.shift;
    Rank const sender = rank_at(rank_ - shift.hop, ranks());
    require(shift.sender == sender, "the rows come from rank ", sender, ", expected are those of rank ", shift.sender);
    mine.in = &slot(shift.in);
    if (exchange.window) return;
    mine.arriving = rows_to_write(shift.in, true);
    for (SlotRow* row : mine.arriving) row->put({});
    if (SlotRow* const sum = checksum_of(shift.in, shift.arriving_slot)) {
      sum->put({.checksum = &shift});
      mine.arriving.push_back(sum);
    }
    for (SlotRow* row : mine.arriving) row->arriving = true;
  }
  /// Null if the exchange has none.
  SlotRow* checksum_of(SlotRows const& rows, int place) {
    Slot const& one = slot(rows);
    if (one.layout.checksums == 0 || rows.rows.empty()) return nullptr;
    require(0 <= place && place < one.layout.checksums, "checksum ", place, " of ", one.layout.checksums);
    return &at(state(rows.slot).contents, one.rows * one.nodes + place);
  }
  void end(Exchange*& exchange) {
    Posting &mine = exchange->of(rank_), &theirs = exchange->sender(rank_);
    theirs.awaited = true;
    if (exchange->window && mine.in) {
      // The slot refers to the rows of the window.
      SlotRows const& in = mine.shift->in;
      SlotState& bound = state(in.slot);
      require(!bound.bound && bound.slot->rows == 0, "the slot has not been released");
      require(in.rows.empty() || in.rows.begin == 0, "the first row of a window is row 0");
      bound = {bound.slot, in.rows.size(), true, std::vector<SlotRow>(theirs.sent.size())};
      mine.arriving = rows_of(in, true);
    }
    for (std::size_t i = 0; i < mine.arriving.size(); ++i) {
      mine.arriving[i]->arriving = false;
      mine.arriving[i]->put(theirs.sent[i]);
    }
    if (exchange->window) return;
    for (SlotRow* row : mine.leaving) --row->sent;
    exchange = nullptr;
  }

  static constexpr std::size_t first_window = num_channels;
  std::array<std::deque<Exchange>, 2 * num_channels>
      channels_;  ///< messages, then windows; exchanges stay where they are
};

}  // namespace annulus::detail::checker
