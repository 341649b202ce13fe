#pragma once
// The actions of a ring: rows of keys or of queries travel from rank to rank, one step ahead of the work on them, and
// sums follow them, by messages or (zero-copy) through windows. On a double ring the peers of a step differ.

#include <memory>

#include "annulus/schedule/action.hpp"
#include "annulus/schedule/leaf_schedule.hpp"
#include "annulus/schedule/plan_slots.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// The actions of one lane, by step and phase. Two lanes take turns in each phase.
class RingActions : LaneBuilder {
 public:
  /// first: of the first lane, whose resident sums this lane adds to; null otherwise.
  RingActions(RingPlan const& lane, Rank rank, ActionList& list, RingActions const* first)
      : LaneBuilder(lane, rank, list) {
    if (!transport_.leaves) return;
    leaves_ = std::make_unique<LeafWalk>();
    leaves_->begin(*transport_.leaves, rank, first ? first->leaves_.get() : nullptr,
                   {resident().slot, own_results().slot});
  }

  /// Packs the rows that leave first.
  void prepare() {
    writer_.at(Action::before_steps, Phase::prepare);
    if (plan_.steps() == 1) return;
    RowRange const sent = planned(0).sent;
    if (zero_copy_) writer_.put(Reclaim{here(0)});
    writer_.put(Pack{keys_ ? GroupRows::keys : GroupRows::queries, sent, {}, {here(0), all_rows(sent.size())}});
  }

  /// Starts to bring the rows of the next step; zero-copy: of all steps.
  void fetch(int i) {
    writer_.at(i, Phase::fetch);
    if (zero_copy_ && i == 0)
      for (int later = 1; later < plan_.steps(); ++later) open_rows(later);
    if (zero_copy_ && carries() && !at_owner(i)) writer_.put(Reclaim{results_slot()});
    if (zero_copy_ || is_last(i)) return;
    PlannedStep const& step = planned(i);
    Index const first = i == 0 ? step.sent.begin : step.held.begin;
    shift(Channel::prefetched, transport_.prefetched_hop(i), {here(i), from_first(step.sent, first)},
          {here(i + 1), all_rows(planned(i + 1).held.size())}, i);
  }

  void compute(int i) {
    writer_.at(i, Phase::compute);
    SlotRows from{-1, planned(i).held};
    if (i > 0) {
      from = {here(i), all_rows(planned(i).held.size())};
      if (request_.has_wire()) {
        SlotRows const widened{slot(SlotKind::widened), from.rows};
        writer_.put(Copy{from, widened});
        from = widened;
      }
    }
    if (leaves_) return leaves_->compute(i, {&writer_, from, results(i), planned(i).held, planned(i).multiply_adds});
    bool const opened = i == 0 && work_on_joint_keys();
    work(i, from, opened);
  }

  /// Awaits the results that were sent after the step before.
  void await_results(int i) {
    writer_.at(i, Phase::await_results);
    if (i > 0 && sends_results(i - 1)) await_shift(Channel::carried, i - 1);
  }
  /// Adds them to the results of this step.
  void join_results(int i) {
    writer_.at(i, Phase::join_results);
    if (i > 0 && sends_results(i - 1)) join_arrived(i - 1, results(i));
  }

  /// Sends the results of the step.
  void send_results(int i) {
    writer_.at(i, Phase::send_results);
    if (zero_copy_ && i > 0) writer_.put(Release{window(i)});
    if (zero_copy_ && i > 0 && sends_results(i - 1)) writer_.put(Release{carried()});
    if (sends_results(i)) {
      PlannedStep const& step = planned(i);
      SlotRows const out{results(i).slot, from_first(step.carried, step.held.begin)};
      shift(Channel::carried, transport_.carried_hop(i), out, {arriving(), all_rows(step.arriving.size())}, i);
    }
    if (zero_copy_ ? !at_owner(i) : sends_results(i)) ++written_;
  }

  /// Awaits the rows of the next step.
  void await_rows(int i) {
    writer_.at(i, Phase::await_rows);
    if (is_last(i)) return;
    if (zero_copy_)
      writer_.put(Await{window(i + 1)});
    else
      await_shift(Channel::prefetched, i);
  }

  /// Awaits the results for this rank's own rows, and writes all results of this rank.
  void finish() {
    int const last = plan_.steps() - 1;
    writer_.at(last, Phase::finish);
    SlotRows own = own_results();
    if (sends_results(last)) {
      await_shift(Channel::carried, last);
      if (transport_.direct)
        join_arrived(last, own);
      else
        own.slot = arriving();
    }
    if (leaves_)
      leaves_->finish(&writer_);
    else
      finish_sums(own);
    if (zero_copy_ && sends_results(last)) writer_.put(Release{carried()});
  }

 private:
  PlannedStep const& planned(int i) const { return plan_.step(rank_, i); }
  bool is_last(int i) const { return i + 1 == plan_.steps(); }
  bool carries() const { return !transport_.carried.empty(); }
  bool sends_results(int i) const { return transport_.carried_hop(i) != 0; }
  /// The results of the step are those of this rank's own rows.
  bool at_owner(int i) const { return plan_.steps() == 1 || (transport_.direct && i == 0); }
  int here(int i) const { return slot(SlotKind::rows, zero_copy_ && i > 0 ? 2 : i % 2); }
  int arriving() const { return slot(SlotKind::results, zero_copy_ ? 4 : 3); }
  SlotRows own_results() const { return {slot(SlotKind::results), all_rows(plan_.rotating_rows(rank_).size())}; }
  /// Numbers of exchanges: a second one of each channel is for offsets of two distances (double ring); then the
  /// windows.
  int prefetched() const { return exchanges_; }
  int carried() const { return exchanges_ + 2; }
  int window(int step) const { return exchanges_ + 3 + step; }

  /// The slot that this step's results are written to; slots alternate while earlier results are on their way.
  int results_slot() const { return slot(SlotKind::results, 1 + written_ % fresh_slots_); }
  /// Number of these slots.
  int fresh_slots() const {
    auto const rows = carried_rows(plan_, rank_);
    return 1 + (rows[2] > 0) + (zero_copy_ && rows[3] > 0);
  }
  SlotRows results(int i) const {
    return {at_owner(i) ? own_results().slot : results_slot(), all_rows(planned(i).held.size())};
  }

  /// Opens the window on the rows that another rank works on at step `later`.
  void open_rows(int later) {
    Rank const reader = transport_.rank_offsets.forward(rank_, plan_.offset(later));
    RowRange const read = from_first(plan_.step(reader, later).held, planned(0).sent.begin);
    writer_.put(Open{{.channel = Channel::prefetched,
                      .hop = plan_.offset(later),
                      .out = {here(0), read},
                      .in = {here(later), all_rows(planned(later).held.size())},
                      .sender = planned(later).owner,
                      .exchange = window(later),
                      .leaving_code = later,
                      .arriving_code = later,
                      .leaving_slot = later - 1}});
  }

  /// Sends `out` to where the offset leads, and receives `in`. Where the offset leads past the end of an inner ring,
  /// the distance in ranks is another one: then there are two shifts, and a rank sends rows in one and none in the
  /// other.
  void shift(Channel channel, int offset, SlotRows out, SlotRows in, int step) {
    RankOffsets const& offsets = transport_.rank_offsets;
    Rank const sender = offsets.backward(rank_, offset);
    Shift whole{.channel = channel,
                .hop = offset,
                .out = out,
                .in = in,
                .sender = sender,
                .exchange = channel == Channel::carried ? carried() : prefetched(),
                .leaving_code = step,
                .arriving_code = step};
    if (zero_copy_) return writer_.put(Open{whole});
    int const to = offsets.distance(rank_, offset), from = offsets.distance(sender, offset);
    for (int hop : offsets.distances(offset)) {
      whole.hop = hop;
      whole.out = to == hop ? out : SlotRows{};
      whole.in = from == hop ? in : SlotRows{};
      writer_.put(whole);
      ++whole.exchange;
    }
  }
  void await_shift(Channel channel, int step) {
    bool const is_carried = channel == Channel::carried;
    int const offset = is_carried ? transport_.carried_hop(step) : transport_.prefetched_hop(step);
    auto const shifts = static_cast<int>(transport_.rank_offsets.distances(offset).size());
    writer_.put(Await{is_carried ? carried() : prefetched(), shifts});
  }

  /// The rows that stay with this rank.
  WorkRows resident_rows() const {
    RowRange const rows = all_rows(plan_.resident_rows(rank_));
    return {rank_, rows, {-1, rows}};
  }
  SlotRows resident() const { return {slot(SlotKind::resident), all_rows(plan_.resident_rows(rank_))}; }

  /// Work on the joint keys, if there are any. They are added to sums that are cleared first, as it may be that not all
  /// queries see them here. Returns whether the sums of the queries have been opened.
  bool work_on_joint_keys() {
    if (request_.joint_keys == 0) return false;
    SlotRows const sums = keys_ ? resident() : results(0);
    if (!keys_ || !transport_.shares_buffers()) writer_.put(Clear{sums});
    SlotRows share;
    if (!forward_) share = {slot(SlotKind::joint_gradients), {rank_, rank_ + 1}};
    if (!forward_ && !transport_.shares_buffers()) writer_.put(Clear{share});
    RowRange const queries = transport_.joint_queries(rank_);
    if (queries.empty()) return true;
    Index const first = keys_ ? 0 : planned(0).held.begin;
    writer_.put(Work{.pairs = WorkPairs::joint,
                     .queries = {rank_, queries, {-1, queries}},
                     .keys = {rank_, all_rows(request_.joint_keys)},
                     .query_sums = {sums.slot, from_first(queries, first)},
                     .key_sums = share});
    return true;
  }

  /// Work on the rows of the step. `opened`: the sums of the queries have been opened.
  void work(int i, SlotRows from, bool opened) {
    bool const first = i == 0 && !transport_.shares_buffers();
    bool const closes =
        is_last(i) && !groups_.joins_results() && (!transport_.halves_rows() || transport_.shares_buffers());
    // A Work that closes sums writes all rows of their result.
    bool const closes_moving = closes && plan_.steps() == 1 && !transport_.halves_rows();
    auto const rows = transport_.by_side(resident_rows(), WorkRows{planned(i).owner, planned(i).held, from});
    auto const sums = transport_.by_side(resident(), results(i));
    auto const opened_now = transport_.by_side(first, true), closed = transport_.by_side(closes, closes_moving);
    writer_.put(Work{.pairs = WorkPairs::step,
                     .queries = rows.queries,
                     .keys = rows.keys,
                     .query_sums = sums.queries,
                     .key_sums = forward_ ? SlotRows{} : sums.keys,
                     .opens_queries = !opened && opened_now.queries,
                     .opens_keys = !forward_ && opened_now.keys,
                     .closes_queries = closed.queries,
                     .closes_keys = !forward_ && closed.keys,
                     .multiply_adds = planned(i).multiply_adds});
  }

  void join_arrived(int sent_in, SlotRows into) {
    SlotRows const from{arriving(), all_rows(planned(sent_in).arriving.size())};
    if (leaves_) return leaves_->receive(sent_in, {&writer_, {}, from, planned(sent_in).arriving});
    RowRange rows = from.rows;
    if (transport_.direct) rows = from_first(planned(sent_in).arriving, plan_.rotating_rows(rank_).begin);
    writer_.put(Join{{transport_.direct ? own_results().slot : into.slot, rows}, from});
  }

  void finish_sums(SlotRows const& own) {
    bool const stays = !groups_.joins_results() && !transport_.shares_buffers();
    if (stays && (keys_ || !forward_)) writer_.put(Finish{resident(), resident().rows});
    if (carries()) writer_.put(Finish{own, plan_.rotating_rows(rank_)});
  }

  std::unique_ptr<LeafWalk> leaves_;  ///< of a reproducible plan
  bool const keys_ = transport_.keys_rotate(), zero_copy_ = request_.zero_copy;
  int const exchanges_ = writer_.exchanges(4 + (zero_copy_ ? plan_.steps() - 1 : 0));
  int const fresh_slots_ = fresh_slots();
  int written_ = 0;  ///< results that are on their way, or have been
};

}  // namespace annulus::detail
