#pragma once
// The actions of small sums over all ranks, with the same bits on each: every rank receives the shares of all, and adds
// them itself. Gradients of sink logits and of joint keys.

#include "annulus/schedule/plan_slots.hpp"

namespace annulus::detail {

class ShareActions : LaneBuilder {
 public:
  using LaneBuilder::LaneBuilder;

  /// Sums and finishes the gradients that the pass has.
  void finish() {
    if (forward_ || transport_.shares_buffers()) return;
    writer_.at(plan_.steps() - 1, Phase::finish);
    if (request_.joint_keys > 0) sum_joint_gradients();
    if (request_.sinks > 0) sum_sink_gradients();
  }

 private:
  SlotRows row(int slot, Index index) const { return {slot, {index, index + 1}}; }

  /// Adds in rank order.
  void sum_joint_gradients() {
    // Their checksum codes begin at `ranks`; those of the sink logits are below.
    gather(slots_.joint_gradients, plan_.ranks(), [](Rank rank) { return RowRange{rank, rank + 1}; });
    sum_in_order(slots_.joint_gradients, plan_.ranks());
  }

  /// Adds in rank order, or (reproducible) in the tree over the leaves of the queries.
  void sum_sink_gradients() {
    int const slot = slots_.sink_gradients;
    Index const sum = transport_.all_sink_rows();
    LeafGrid const* const grid = transport_.leaves ? &transport_.leaves->grid() : nullptr;
    if (!grid) writer_.put(SinkShare{all_rows(plan_.local_queries(rank_)), row(slot, rank_)});
    if (grid)
      for (Index const index : grid->of_rank(Side::query, rank_)) {
        Leaf const& leaf = grid->leaf(Side::query, index);
        writer_.put(SinkShare{leaf.local_rows(), row(slot, leaf.place)});
      }
    gather(slot, 0, [&](Rank rank) { return transport_.sink_rows(rank); });
    if (!grid) return sum_in_order(slot, sum);
    auto const place = [&](Index index) { return grid->leaf(Side::query, index).place; };
    Index const leaves = grid->count(Side::query);
    writer_.put(Clear{row(slot, sum)});
    for (Index width = 1; width < leaves; width *= 2)
      for (Index begin = 0; begin + width < leaves; begin += 2 * width)
        writer_.put(Join{row(slot, place(begin)), row(slot, place(begin + width))});
    if (leaves > 0) writer_.put(Join{row(slot, sum), row(slot, place(0))});
    writer_.put(Finish{row(slot, sum), {0, 1}});
  }

  /// Row `sum` of the slot becomes the sum of those before it.
  void sum_in_order(int slot, Index sum) {
    writer_.put(Clear{row(slot, sum)});
    for (Index share = 0; share < sum; ++share) writer_.put(Join{row(slot, sum), row(slot, share)});
    writer_.put(Finish{row(slot, sum), {0, 1}});
  }

  /// Sends the shares of all ranks once around the ring. rows_of(rank): rows of its shares.
  template <class RowsOf>
  void gather(int slot, int first_code, RowsOf&& rows_of) {
    int const ranks = plan_.ranks(), ahead = transport_.backwards ? -1 : 1;
    auto const at = [&](int places) { return rank_at(rank_ - places * ahead, ranks); };
    for (int i = 0; i + 1 < ranks; ++i) {
      int const exchange = writer_.exchanges(1);
      writer_.put(Shift{.channel = Channel::reduction,
                        .hop = rank_at(ahead, ranks),
                        .out = {slot, rows_of(at(i))},
                        .in = {slot, rows_of(at(i + 1))},
                        .sender = at(1),
                        .exchange = exchange,
                        .leaving_code = first_code + i,
                        .arriving_code = first_code + i});
      writer_.put(Await{exchange});
    }
  }
};

}  // namespace annulus::detail
