#pragma once
// The actions of calls on a cache, whose keys never move: in prefill queries visit the ranks and states return straight
// to their owners; in decode the states of all ranks are merged; appended rows go to the ranks that hold their pages.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>

#include "annulus/core/definitions.hpp"
#include "annulus/core/function_ref.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/schedule/merge_plan.hpp"
#include "annulus/schedule/plan_request.hpp"

namespace annulus::detail {

/// Partial results of a row over leaves, in the slots of a reproducible call.
struct CacheNodes {
  Index own = 1;       ///< of rows of this rank, until all are joined
  Index visiting = 1;  ///< of rows that visit this rank, while it adds its leaves
  Index sent = 1;      ///< that one rank sends another one
};

/// Each function replaces the contents of `list`, and reuses its storage. request: shape, bytes of elements, whether
/// rows have document ids, whether messages have checksums,
/// and the rules of a reproducible call, which needs `nodes`.

/// Prefill: `lengths` are the query rows of each rank.
void prefill_actions(ActionList& list, PlanRequest const& request, std::span<Index const> lengths, Rank rank,
                     CacheNodes const& nodes = {});
/// Decode of `queries` rows that every rank has. Reproducible: by MergeMethod::gather.
void decode_actions(ActionList& list, PlanRequest const& request, Index queries, MergePlan const& merge, Rank rank,
                    CacheNodes const& nodes = {});
/// Appends shards of rows: moving(source, target) is the number of rows given on `source` whose pages are on `target`.
void append_actions(ActionList& list, PlanRequest const& request, int ranks, Rank rank,
                    FunctionRef<Index(Rank, Rank)> moving);

}  // namespace annulus::detail

#if defined(ANNULUS_DEFINITIONS)
#include "annulus/schedule/transport.hpp"

namespace annulus::detail {

/// Slots and actions of one call on a cache.
class CacheActions {
 public:
  CacheActions(ActionList& list, PlanRequest const& request, int ranks, Rank rank, CacheNodes const& nodes = {})
      : list_(list),
        parts_{request, request.shape},
        request_(request),
        nodes_(nodes),
        ranks_(ranks),
        rank_(rank),
        writer_(list, 0) {
    list.slots.clear();
    list.actions.clear();
    list.exchanges = 0;
  }

  void prefill(std::span<Index const> lengths) {
    list_.steps = ranks_;
    bool const travels = ranks_ > 1;
    Index const most = travels ? *std::max_element(lengths.begin(), lengths.end()) : 0;
    auto const owner = [&](int step) { return rank_at(rank_ - step, ranks_); };
    auto const rows_of = [&](Rank rank) { return all_rows(lengths[static_cast<std::size_t>(rank)]); };
    RowRange const own = rows_of(rank_);
    // Slots 0 and 1 have the rows of steps in turn, slot 2 the state of this rank's rows, 3 and 4 those of other rows
    // in turn, and 5 the states that arrive.
    for (int number : {0, 1}) add(SlotKind::rows, number, parts_.queries(request_.element_bytes), most);
    add_state(SlotKind::results, 0, own.size(), nodes_.own);
    std::array const travelling{most, ranks_ > 2 ? most : 0, travels ? own.size() : 0};
    for (int number = 1; Index rows : travelling) add_state(SlotKind::results, number++, rows, nodes_.sent);
    add_leaf();
    int const leaves = reproducible() ? add_state(SlotKind::states, 0, most, nodes_.visiting) : -1;
    SlotRows const own_state{2, own}, arriving{5, own};
    auto const rows_at = [&](int step) { return SlotRows{step % 2, rows_of(owner(step))}; };
    int const fetched = writer_.exchanges(1), carried = writer_.exchanges(1);
    auto const join_carried = [&] {
      writer_.put(Await{carried});
      writer_.put(Join{own_state, arriving});
    };
    if (travels) writer_.put(Pack{GroupRows::queries, own, {}, {0, own}});
    for (int step = 0; step < ranks_; ++step) {
      bool const first = step == 0, last = step + 1 == ranks_;
      SlotRows const here = rows_at(step), state = first ? own_state : SlotRows{3 + (step - 1) % 2, here.rows};
      writer_.at(step, Phase::fetch);
      if (!last) writer_.put(shift(Channel::prefetched, 1, here, rows_at(step + 1), fetched, step));
      writer_.at(step, Phase::compute);
      put_work({owner(step), here.rows, first ? SlotRows{-1, here.rows} : here},
               first || !reproducible() ? state : SlotRows{leaves, here.rows});
      if (!first && reproducible()) writer_.put(Copy{{leaves, here.rows}, state});
      writer_.at(step, Phase::join_results);
      if (step > 1) join_carried();
      writer_.at(step, Phase::send_results);
      if (!first) writer_.put(shift(Channel::carried, ranks_ - step, state, arriving, carried, step));
      writer_.at(step, Phase::await_rows);
      if (!last) writer_.put(Await{fetched});
    }
    if (travels) {
      writer_.at(ranks_ - 1, Phase::finish);
      join_carried();
    }
    writer_.put(Finish{own_state, own});
  }

  /// Every rank sends its state to all others; all merge them in the same order.
  void gather(Index queries, MergePlan const& merge) {
    list_.steps = 1;
    // Slot r holds the state of rank r, the next one, of a reproducible call, all partial results.
    for (Rank rank = 0; rank < ranks_; ++rank) add_state(SlotKind::states, rank, queries, nodes_.sent);
    auto const state = [&](Rank rank) { return SlotRows{rank, all_rows(queries)}; };
    RowRange const rows = all_rows(queries);
    SlotRows const joined =
        reproducible() ? SlotRows{add_state(SlotKind::results, 0, queries, nodes_.own), rows} : state(0);
    add_leaf();
    put_work({rank_, rows, {-1, rows}}, reproducible() ? joined : state(rank_));
    if (reproducible() && ranks_ > 1) writer_.put(Copy{joined, state(rank_)});
    writer_.at(0, Phase::send_results);
    int const first = writer_.exchanges(ranks_ - 1);
    for (int hop = 1; hop < ranks_; ++hop) {
      Rank const sender = rank_at(rank_ - hop, ranks_);
      // States of several ranks arrive at the same time: their checksums differ by the sender. All shifts send the same
      // bytes, which must not change once the first has begun.
      Shift one = shift(Channel::reduction, hop, state(rank_), state(sender), first + hop - 1, rank_);
      one.arriving_code = sender;
      one.sealed = hop > 1;
      writer_.put(one);
    }
    for (int hop = 1; hop < ranks_; ++hop) writer_.put(Await{first + hop - 1});
    if (reproducible())
      for (int k = 1; k < ranks_; ++k) writer_.put(Join{joined, state(rank_at(rank_ + k, ranks_))});
    else
      merge.for_each_merge([&](Rank into, Rank from) { writer_.put(Join{state(into), state(from)}); });
    writer_.put(Finish{joined, rows});
  }

  /// Pairs of ranks exchange states, then pairs of pairs. Ranks beyond the largest power of two give their state to one
  /// of the pairs first, and receive the result in the end.
  void tree(Index queries, MergePlan const& merge) {
    list_.steps = merge.rounds();
    RowRange const rows = all_rows(queries);
    own_ = {add(SlotKind::states, 0, parts_.state(), queries), rows};
    other_ = {add(SlotKind::states, 1, parts_.state(), queries), rows};
    put_work({rank_, rows, {-1, rows}}, own_);
    int const paired = merge.paired(), excess = merge.excess();
    bool const is_paired = rank_ < paired;
    int const exchanges = writer_.exchanges(2);
    if (excess > 0) {
      exchange(exchanges, {{ranks_ - paired, !is_paired, rank_ < excess}});
      if (rank_ < excess) join_other(true);
    }
    for (int distance = 1; distance < paired; distance *= 2) {
      bool const lower = is_paired && (rank_ & distance) == 0, upper = is_paired && !lower;
      if (2 * distance == ranks_)
        exchange(exchanges, {{distance, true, true}});
      else
        exchange(exchanges, {{distance, lower, upper}, {ranks_ - distance, upper, lower}});
      if (is_paired) join_other(lower);
    }
    if (excess > 0) {
      exchange(exchanges, {{paired, rank_ < excess, !is_paired}});
      if (!is_paired) std::swap(own_, other_);
    }
    writer_.put(Finish{own_, rows});
  }

  void append(FunctionRef<Index(Rank, Rank)> moving) {
    list_.steps = ranks_ - 1;
    auto const target = [&](int hop) { return rank_at(rank_ + hop, ranks_); };
    auto const source = [&](int hop) { return rank_at(rank_ - hop, ranks_); };
    Index leaving = 0, arriving = 0;
    for (int hop = 1; hop < ranks_; ++hop) {
      leaving = std::max(leaving, moving(rank_, target(hop)));
      arriving = std::max(arriving, moving(source(hop), rank_));
    }
    PayloadLayout const keys = parts_.keys(request_.element_bytes);
    int const out = add(SlotKind::leaving, 0, keys, leaving), in = add(SlotKind::arriving, 0, keys, arriving);
    int const exchange = writer_.exchanges(1);
    for (int hop = 1; hop < ranks_; ++hop) {
      writer_.at(hop - 1, Phase::send_results);
      SlotRows const leaves{out, all_rows(moving(rank_, target(hop)))},
          arrives{in, all_rows(moving(source(hop), rank_))};
      writer_.put(Pack{GroupRows::keys, leaves.rows, {}, leaves});
      writer_.put(shift(Channel::prefetched, hop, leaves, arrives, exchange, hop - 1));
      writer_.put(Await{exchange});
      writer_.put(Write{arrives});
    }
  }

 private:
  /// One shift of a round: whether this rank sends its state, and receives another one.
  struct RoundShift {
    int hop;
    bool sends, receives;
  };

  bool reproducible() const { return request_.rules.reproducible; }

  int add(SlotKind kind, int number, PayloadLayout layout, Index rows, Index nodes = 1) {
    layout.checksums = request_.checked ? 2 : 0;
    list_.slots.push_back({.kind = kind, .number = number, .layout = layout, .rows = rows, .nodes = nodes});
    return static_cast<int>(list_.slots.size()) - 1;
  }
  int add_state(SlotKind kind, int number, Index rows, Index nodes) {
    return add(kind, number, parts_.state().with_batch(nodes * request_.shape.batch), rows, nodes);
  }
  /// Of a reproducible call: the keys of a leaf whose pages are not adjacent.
  void add_leaf() {
    if (!reproducible()) return;
    add(SlotKind::gathered, static_cast<int>(GroupRows::keys), parts_.keys(request_.element_bytes).with_batch(1),
        request_.rules.reproducible_leaf);
  }
  void put_work(WorkRows const& queries, SlotRows const& state) {
    writer_.put(Work{.pairs = WorkPairs::cached, .queries = queries, .query_sums = state, .opens_queries = true});
  }
  Shift shift(Channel channel, int hop, SlotRows out, SlotRows in, int exchange, int code) const {
    return {.channel = channel,
            .hop = hop,
            .out = out,
            .in = in,
            .sender = rank_at(rank_ - hop, ranks_),
            .exchange = exchange,
            .leaving_code = code,
            .arriving_code = code};
  }
  void exchange(int first, std::initializer_list<RoundShift> shifts) {
    writer_.at(round_, Phase::send_results);
    int number = first;
    for (RoundShift const& one : shifts)
      writer_.put(shift(Channel::reduction, one.hop, one.sends ? own_ : SlotRows{}, one.receives ? other_ : SlotRows{},
                        number++, round_));
    for (int done = first; done < number; ++done) writer_.put(Await{done});
    ++round_;
  }
  /// Merges the two states, that of the lower rank first.
  void join_other(bool own_first) {
    if (!own_first) std::swap(own_, other_);
    writer_.put(Join{own_, other_});
  }

  ActionList& list_;
  PartsOfRows parts_;
  PlanRequest const& request_;
  CacheNodes nodes_;
  int ranks_;
  Rank rank_;
  ActionWriter writer_;
  SlotRows own_, other_;
  int round_ = 0;
};

ANNULUS_INLINE void prefill_actions(ActionList& list, PlanRequest const& request, std::span<Index const> lengths,
                                    Rank rank, CacheNodes const& nodes) {
  CacheActions(list, request, static_cast<int>(lengths.size()), rank, nodes).prefill(lengths);
}

ANNULUS_INLINE void decode_actions(ActionList& list, PlanRequest const& request, Index queries, MergePlan const& merge,
                                   Rank rank, CacheNodes const& nodes) {
  CacheActions actions(list, request, merge.ranks(), rank, nodes);
  if (merge.method() == MergeMethod::gather)
    actions.gather(queries, merge);
  else
    actions.tree(queries, merge);
}

ANNULUS_INLINE void append_actions(ActionList& list, PlanRequest const& request, int ranks, Rank rank,
                                   FunctionRef<Index(Rank, Rank)> moving) {
  CacheActions(list, request, ranks, rank).append(moving);
}

}  // namespace annulus::detail
#endif
