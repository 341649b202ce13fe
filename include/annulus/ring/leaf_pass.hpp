#pragma once
// A reproducible pass: pairs of leaves are computed apart, and their results are joined in the fixed tree of the leaf
// schedule, at the rank that owns the rows. Knows where partial results are, not what the pass computes.

#include <array>
#include <cstddef>

#include "annulus/ring/pass_context.hpp"
#include "annulus/ring/rotation_loop.hpp"

namespace annulus::detail {

/// The running state that is stored in a payload.
template <class A, class Payload>
auto state_in(Payload const& payload) {
  return RunningState<A, typename Payload::memory_space>{payload.template view<A>(Part::accumulator),
                                                         payload.template statistics<A>(Part::maximum),
                                                         payload.template statistics<A>(Part::sum)};
}

/// Partial results of a leaf: `rows` of a payload, counted from its first. A payload that travels may have several for
/// each row, one after the other along the axis of the batch; `node` is the number of this one.
template <class A, class Payload>
struct PartialSums {
  using Space = typename Payload::memory_space;

  Payload const* payload = nullptr;
  RowRange rows{};
  Index batch = 1;
  Index node = 0;

  TensorView<A, 4, Space> view(Part part) const {
    return payload->template view<A>(part)
        .slice(axis::batch, node * batch, batch)
        .slice(axis::sequence, rows.begin, rows.size());
  }
  RunningState<A, Space> state() const {
    auto const statistics = [&](Part part) {
      return payload->template statistics<A>(part).slice(0, node * batch, batch).slice(2, rows.begin, rows.size());
    };
    return {view(Part::accumulator), statistics(Part::maximum), statistics(Part::sum)};
  }
  bool is_state() const { return payload->layout().parts[0].part == Part::accumulator; }

  /// Makes the rows those that have seen nothing.
  template <class B>
  void clear(B& backend) const {
    if (is_state())
      backend.reset(state());
    else
      for (PartLayout const& part : payload->layout().parts) backend.clear(view(part.part));
  }
};

/// A pair of leaves at a step.
struct LeafPair {
  int step;
  Index query_leaf, key_leaf;
  RowRange queries, keys;  ///< rows of the leaves among those of the operands at the step
  Index query_row;         ///< first row of the query leaf in the shard of its owner
  Index key_row;           ///< the same of the key leaf

  template <class T, class Space>
  StepOperands<T, Space> rows_of(StepOperands<T, Space> const& step_operands) const {
    auto const rows = [](auto const& view, RowRange range) {
      return view.slice(axis::sequence, range.begin, range.size());
    };
    return {rows(step_operands.q, queries), rows(step_operands.k, keys), rows(step_operands.v, keys)};
  }
  template <class T, class L, class A, class Space>
  BackwardOperands<T, L, A, Space> rows_of(BackwardOperands<T, L, A, Space> const& known) const {
    auto const rows = [&](auto const& statistics) {
      return statistics.data() ? statistics.slice(2, queries.begin, queries.size()) : statistics;
    };
    return {known.dout.slice(axis::sequence, queries.begin, queries.size()), rows(known.lse), rows(known.delta),
            rows(known.lse_remainder)};
  }
};

/// The work of a LeafWalk at one step.
template <class A, class C, class B, class Predicate, class Fold, class Finish>
class LeafActions {
 public:
  using Payload = typename RingBuffers<C, B>::Payload;
  using Sums = PartialSums<A, Payload>;

  /// here: rotating rows of the step; travelling: the results that leave after it, or those that have arrived.
  LeafActions(PassContext<C, B, Predicate> const& context, Fold& fold, Finish& finish, int step, Payload const& here,
              Payload const& travelling, Progress progress)
      : context_(context),
        fold_(fold),
        finish_(finish),
        step_(step),
        here_(here),
        travelling_(travelling),
        progress_(progress) {}

  void fold(Index resident_leaf, Index rotating_leaf, PairSlots slots) const {
    LeafSchedule const& leaves = *context_.plan.leaves();
    bool const keys_rotate = context_.plan.rotation() == Rotation::keys;
    Index const query_leaf = keys_rotate ? resident_leaf : rotating_leaf;
    Index const key_leaf = keys_rotate ? rotating_leaf : resident_leaf;
    Leaf const& queries = leaves.grid().leaf(Side::query, query_leaf);
    Leaf const& keys = leaves.grid().leaf(Side::key, key_leaf);
    Index const held = context_.plan.step(context_.communicator.rank(), step_).held.begin;
    auto const rows = [&](Leaf const& leaf, bool rotates) {
      Index const begin = leaf.local_begin - (rotates ? held : 0);
      return RowRange{begin, begin + leaf.rows};
    };
    LeafPair const pair{step_,
                        query_leaf,
                        key_leaf,
                        rows(queries, !keys_rotate),
                        rows(keys, keys_rotate),
                        queries.local_begin,
                        keys.local_begin};
    std::array<Sums, 2> sums;
    if (slots.resident >= 0) sums[0] = slot(LeafSums::resident, resident_leaf, slots.resident);
    if (slots.rotating >= 0) sums[1] = slot(LeafSums::rotating, rotating_leaf, slots.rotating);
    for (Sums const& sum : sums)
      if (sum.payload) sum.clear(context_.backend);
    fold_(pair, here_, progress_, sums);
    context_.backend.synchronize();
  }

  void join(LeafSums sums, Index leaf, Index into, Index from) const {
    Sums const lower = slot(sums, leaf, into), upper = slot(sums, leaf, from);
    if (lower.is_state())
      context_.backend.merge(lower.state(), upper.state());
    else
      for (PartLayout const& part : lower.payload->layout().parts)
        context_.backend.add(lower.view(part.part), constant(upper.view(part.part)));
  }
  void send(Index leaf, Index node, Index from) const {
    copy(slot(LeafSums::rotating, leaf, from), travelling(leaf, node));
  }
  /// Clears what travels in place of the partial result: whole rows are sent.
  void send_none(Index leaf, Index node) const {
    RowRange const rows = leaf_of(LeafSums::rotating, leaf).local_rows(), held = travelling_.rows();
    if (held.begin <= rows.begin && rows.end <= held.end) travelling(leaf, node).clear(context_.backend);
  }
  void receive(Index leaf, Index node, Index into) const {
    copy(travelling(leaf, node), slot(LeafSums::rotating, leaf, into));
  }
  void clear(LeafSums sums, Index leaf, Index slot_index) const {
    slot(sums, leaf, slot_index).clear(context_.backend);
  }
  void finish(LeafSums sums, Index leaf, Index result) const {
    finish_(sums, leaf_of(sums, leaf).local_rows(), slot(sums, leaf, result));
  }

 private:
  template <class T, std::size_t N, class Space>
  static TensorView<T const, N, Space> constant(TensorView<T, N, Space> const& view) {
    return view;
  }
  Leaf const& leaf_of(LeafSums sums, Index leaf) const {
    LeafSchedule const& leaves = *context_.plan.leaves();
    return leaves.grid().leaf(leaves.side(sums), leaf);
  }
  Sums slot(LeafSums sums, Index leaf, Index index) const {
    LeafSchedule const& leaves = *context_.plan.leaves();
    Index const begin = index * leaves.grid().longest(leaves.side(sums));
    return {sums == LeafSums::resident ? &context_.shared.resident : &context_.buffers.carried[0],
            {begin, begin + leaf_of(sums, leaf).rows},
            context_.plan.request().shape.batch};
  }
  Sums travelling(Index leaf, Index node) const {
    Leaf const& rows = leaf_of(LeafSums::rotating, leaf);
    Index const begin = rows.local_begin - travelling_.rows().begin;
    return {&travelling_, {begin, begin + rows.rows}, context_.plan.request().shape.batch, node};
  }
  void copy(Sums const& from, Sums const& to) const {
    for (PartLayout const& part : from.payload->layout().parts)
      context_.backend.copy(constant(from.view(part.part)), to.view(part.part));
  }

  PassContext<C, B, Predicate> const& context_;
  Fold& fold_;
  Finish& finish_;
  int step_;
  Payload const& here_;
  Payload const& travelling_;
  Progress progress_;
};

/// Executes all steps of a reproducible plan on this rank; see rotate().
///   fold(pair, here, progress, sums)  adds a pair of leaves to the sums of the resident and of the rotating leaf, those
///                          of the two that the pass has
///   finish(sums, rows, partial)  uses the result for rows of this rank; sums: of which side they are
///   end()                  is called after all results have been used
///   run(lane)              rotates the lane
template <class A, Communicator C, Backend B, class Predicate, class Fold, class Finish, class End>
void rotate_leaves(PassContext<C, B, Predicate> const& context, Fold&& fold, Finish&& finish, End&& end,
                   FunctionRef<void(Lane<C, B> const&)> run) {
  using Payload = typename RingBuffers<C, B>::Payload;
  RingPlan const& plan = context.plan;
  LeafSchedule const& leaves = *plan.leaves();
  LeafWalk& walk = context.buffers.leaves;
  Rank const rank = context.communicator.rank();
  walk.begin(leaves, rank, plan.shares_buffers() ? &context.shared.leaves : nullptr);
  auto const actions = [&](int step, Payload const& here, Payload const& travelling, Progress progress) {
    return LeafActions<A, C, B, Predicate, Fold, Finish>(context, fold, finish, step, here, travelling, progress);
  };
  auto const visit = [&](int i, Payload const& here, Payload const& results, Progress progress) {
    if (i == 0 && leaves.sums(LeafSums::rotating)) context.buffers.carried[0].hold({0, plan.carried_rows(rank)[0]});
    walk.compute(i, actions(i, here, results, progress));
  };
  auto const join = [&](Payload const&, Payload const& from, int sent_in) {
    walk.receive(sent_in, actions(sent_in, from, from, {}));
  };
  auto const use = [&](Payload const& own_results) {
    walk.finish(actions(plan.steps() - 1, own_results, own_results, {}));
    end();
  };
  auto const inspect = [](int, Payload const&) {};
  run({plan, context.buffers, visit, inspect, join, use});
}

}  // namespace annulus::detail
