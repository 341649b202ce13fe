#pragma once
// Forward pass: runs the plan through the ring loop and the backend, and computes output and lse.

#include <cstdint>

#include "annulus/backend/open_close.hpp"
#include "annulus/ring/head_lanes.hpp"
#include "annulus/ring/joint_keys.hpp"
#include "annulus/ring/leaf_pass.hpp"
#include "annulus/ring/pass_context.hpp"
#include "annulus/ring/rotation_loop.hpp"

namespace annulus::detail {

/// The rows of `view`, a view of payload `mine`, that payload `other` holds. `sequence`: the axis of the rows.
template <class T, std::size_t N, class Space, class Payload>
TensorView<T, N, Space> rows_held_by(Payload const& other, Payload const& mine, TensorView<T, N, Space> view,
                                     std::size_t sequence) {
  return view.slice(sequence, other.rows().begin - mine.rows().begin, other.rows().size());
}

/// Copies `range` of the rows of an operand into a part of a payload that holds these rows. `sequence`: the axis of the
/// rows.
template <class B, class T, std::size_t N, class Space>
void pack(B& backend, TensorView<T const, N, Space> rows, std::size_t sequence, RowRange range,
          TensorView<T, N, Space> part) {
  backend.copy(rows.slice(sequence, range.begin, range.size()), part);
}

/// The caller's document ids of the rotating side, [batch, rows]; without data if none are given.
template <class T, class Space>
TensorView<std::int32_t const, 2, Space> rotating_ids(Operands<T, Space> const& operands, RingPlan const& plan) {
  if (!operands.query_documents) return {};
  return plan.rotation() == Rotation::keys ? *operands.key_documents : *operands.query_documents;
}

/// Document ids of the rotating rows of a step: the caller's at step 0, then those of the payload.
template <class T, class Space, class Payload>
TensorView<std::int32_t const, 2, Space> ids_at(int step, Operands<T, Space> const& operands, RingPlan const& plan,
                                                Rank rank, Payload const& here) {
  if (step == 0 || !operands.query_documents) return held_at_start(plan, rank, rotating_ids(operands, plan), 1);
  return here.template document_ids<std::int32_t>();
}

/// Packs rows of an operand, in the wire type.
template <class B, class T, class Space>
void pack_operand(B& backend, WirePayloads<Space> const& wire, TensorView<T const, 4, Space> rows, Part part,
                  Payload<Space> const& payload) {
  RowRange const range = payload.rows();
  if (!wire.pack(rows.slice(axis::sequence, range.begin, range.size()), payload, part))
    pack(backend, rows, axis::sequence, range, payload.template view<T>(part));
}

/// Packs the rotating side's k and v, or q, and its document ids into the payload.
template <class B, class T, class Space, class Payload>
void pack_rotating(B& backend, WirePayloads<Space> const& wire, StepOperands<T, Space> const& own,
                   Operands<T, Space> const& operands, RingPlan const& plan, Payload const& payload) {
  auto const pack_part = [&](Part part, TensorView<T const, 4, Space> rows) {
    pack_operand(backend, wire, rows, part, payload);
  };
  if (plan.rotation() == Rotation::keys) {
    pack_part(Part::k, own.k);
    pack_part(Part::v, own.v);
  } else {
    pack_part(Part::q, own.q);
  }
  if (operands.query_documents)
    pack(backend, rotating_ids(operands, plan), 1, payload.rows(), payload.template document_ids<std::int32_t>());
}

/// q, k and v of a step: this rank's own at step 0, then those of the rotating side from the payload.
template <class T, class Space, class Payload>
StepOperands<T, Space> operands_at(int step, StepOperands<T, Space> own, RingPlan const& plan, Rank rank,
                                   Payload const& here) {
  auto const at_step = [&](TensorView<T const, 4, Space> const& mine, Part part) -> TensorView<T const, 4, Space> {
    if (step == 0) return held_at_start(plan, rank, mine, axis::sequence);
    return here.template view<T>(part);
  };
  if (plan.rotation() == Rotation::keys) {
    own.k = at_step(own.k, Part::k);
    own.v = at_step(own.v, Part::v);
  } else {
    own.q = at_step(own.q, Part::q);
  }
  return own;
}

/// The forward pass of one lane, on its heads and rows; see forward_pass. run(lane) rotates all lanes.
template <Communicator C, Backend B, class T, class Predicate, class Space>
void forward_lane(PassContext<C, B, Predicate> const& context, StepOperands<T, Space> const& given,
                  Operands<T, Space> const& operands, TensorView<T, 4, Space> output,
                  TensorView<Accumulator<T>, 3, Space> lse, TensorView<Accumulator<T>, 3, Space> lse_remainder,
                  FunctionRef<void(Lane<C, B> const&)> run) {
  using A = AccumulatorOf<B, T>;
  using Payload = typename RingBuffers<C, B>::Payload;
  RingPlan const& plan = context.plan;
  B& backend = context.backend;
  RingBuffers<C, B>& buffers = context.buffers;
  Rank const rank = context.communicator.rank();
  bool const keys_rotate = plan.rotation() == Rotation::keys;
  buffers.reserve(backend, context.communicator, plan);
  Payload& resident = context.shared.resident;
  bool const is_first = !plan.shares_buffers();
  StepOperands<T, Space> const own = context.shared.wire.rounded(given, !is_first);
  StepBuilder<T, Predicate, Space> builder(plan, rank, context.predicate, operands, buffers.places);

  bool const joined_later = keys_rotate && plan.groups().joins_results();
  // True if the backend writes the results of the only step itself. Not with a predicate, which may throw after some
  // are written; not over operands, which are still read.
  bool const only_step = ClosingBackend<B> && std::same_as<Predicate, EveryPair> && plan.steps() == 1 && keys_rotate &&
                         !plan.leaves() && !plan.halves_rows() && !joined_later && !operands.joint_keys &&
                         !operands.sinks && !context.require_finite && !detail::may_share_memory(output, own.q) &&
                         !detail::may_share_memory(output, own.k) && !detail::may_share_memory(output, own.v);
  Payload& first = buffers.prefetched[0];
  first.hold(plan.step(rank, 0).sent);
  if (plan.steps() > 1) pack_rotating(backend, buffers.wire, own, operands, plan, first);
  if (keys_rotate && !plan.leaves() && is_first && !only_step) backend.reset(state_in<A>(resident));
  backend.synchronize();

  // Who does not ask for lse_remainder forgoes exact agreement of the passes; rows of a group are not this rank's
  // alone.
  bool const recomputed = lse_remainder.data() || joined_later;
  auto const visit = [&](int i, Payload const& here, Payload const& results, Progress progress) {
    auto const state = state_in<A>(keys_rotate ? resident : results);
    if (!keys_rotate) backend.reset(state);
    if (i == 0 && operands.joint_keys) {
      auto joint = joint_step(plan, rank, operands, buffers.joint_places, progress);
      joint.recomputed = recomputed;
      RowRange const queries = plan.joint_queries(rank);
      Index const begin = queries.begin - (keys_rotate ? 0 : results.rows().begin);
      auto const rows = [&](auto const& view, std::size_t sequence) {
        return view.slice(sequence, begin, queries.size());
      };
      detail::fold(
          backend, joint, joint_operands(queries, own, operands),
          RunningState<A, Space>{rows(state.accumulator, axis::sequence), rows(state.maximum, 2), rows(state.sum, 2)});
    }
    Step<T, Predicate, Space> step = builder.build(i, ids_at(i, operands, plan, rank, here), progress);
    step.recomputed = recomputed;
    if (only_step) step.opens = step.closes = Sums::queries;
    detail::fold(backend, step, operands_at(i, own, plan, rank, here), state,
                 ForwardResults<T, Accumulator<T>, Space>{output, lse, lse_remainder});
  };
  auto const inspect_state = [&](RunningState<A, Space> const& state, Index first_row, int i) {
    if constexpr (std::same_as<Space, HostMemory>) {
      if (!context.require_finite) return;
      ResultPlace const theirs = context.place(i);
      ResultPlace const place = (keys_rotate ? theirs.of_own_rows() : theirs).of_rows(plan, Side::query);
      require_finite("the maximum of the logits", state.maximum, first_row, place);
      require_finite("the sum of the weights", state.sum, first_row, place);
      require_finite("the un-normalised output", state.accumulator, first_row, place);
    }
  };
  auto const inspect = [&](int i, Payload const& results) {
    Payload const& payload = keys_rotate ? resident : results;
    inspect_state(state_in<A>(payload), payload.rows().begin, i);
  };
  auto const join = [&](Payload const& into, Payload const& from, int) {
    auto const state = state_in<A>(into);
    backend.merge(
        RunningState<A, Space>{rows_held_by(from, into, state.accumulator, axis::sequence),
                               rows_held_by(from, into, state.maximum, 2), rows_held_by(from, into, state.sum, 2)},
        state_in<A>(from));
  };
  TensorView<Accumulator<T> const, 2, Space> sinks;
  if (operands.sinks) sinks = *operands.sinks;
  auto const own_queries = [&](auto const& results, std::size_t sequence) {
    return keys_rotate ? results : held_at_start(plan, rank, results, sequence);
  };
  auto const finish = [&](Payload const& own_results) {
    if (only_step || joined_later || (keys_rotate && !is_first)) return;
    backend.normalise(state_in<A>(keys_rotate ? resident : own_results), sinks, own_queries(output, axis::sequence),
                      own_queries(lse, 2), own_queries(lse_remainder, 2));
  };
  if (plan.leaves()) {
    auto const fold_leaves = [&](LeafPair const& pair, Payload const& here, Progress progress,
                                 std::array<PartialSums<A, Payload>, 2> const& sums) {
      auto const state = sums[keys_rotate ? 0 : 1].state();
      auto step = builder.build_leaves(plan.leaves()->grid(), pair.query_leaf, pair.key_leaf, pair.queries.begin,
                                       pair.keys.begin, ids_at(pair.step, operands, plan, rank, here), progress);
      step.recomputed = recomputed;
      detail::fold(backend, step, pair.rows_of(operands_at(pair.step, own, plan, rank, here)), state);
      if (context.require_finite) backend.synchronize();
      inspect_state(state, pair.query_row, pair.step);
    };
    auto const normalise_leaf = [&](LeafSums, RowRange rows, PartialSums<A, Payload> const& sums) {
      TensorView<Accumulator<T>, 3, Space> remainder = lse_remainder;
      if (remainder.data()) remainder = remainder.slice(2, rows.begin, rows.size());
      backend.normalise(sums.state(), sinks, output.slice(axis::sequence, rows.begin, rows.size()),
                        lse.slice(2, rows.begin, rows.size()), remainder);
    };
    rotate_leaves<A>(
        context, fold_leaves, normalise_leaf, [] {}, run);
  } else {
    run({plan, buffers, visit, inspect, join, finish});
  }
  if constexpr (std::same_as<Space, HostMemory>)
    if (context.require_finite && !joined_later && is_first) {
      ResultPlace const place = context.place(plan.steps() - 1).of_own_rows().of_rows(plan, Side::query);
      require_finite("lse", lse, 0, place);
      require_finite("output", output, 0, place);
    }
}

/// lanes: contexts of the plan's lanes. own: the q, k, v that this rank works on. output [batch, queries, query_heads,
/// value_dim], lse and lse_remainder [batch, query_heads, queries]; lse_remainder without data is not written. All
/// ranks have validated their arguments. Of a plan whose groups join results, state that stays is left in
/// buffers.resident, and no results are written.
template <Communicator C, Backend B, class T, class Predicate, class Space>
void forward_pass(std::span<PassContext<C, B, Predicate> const> lanes, StepOperands<T, Space> const& own,
                  Operands<T, Space> const& operands, TensorView<T, 4, Space> output,
                  TensorView<Accumulator<T>, 3, Space> lse, TensorView<Accumulator<T>, 3, Space> lse_remainder) {
  rotate_lanes(lanes, [&](PassContext<C, B, Predicate> const& context, FunctionRef<void(Lane<C, B> const&)> run) {
    LaneHeads const heads(context.plan);
    forward_lane(context, heads.of(own), heads.of(operands), heads.of_queries(output, axis::heads),
                 heads.of_queries(lse, 1), heads.of_queries(lse_remainder, 1), run);
  });
}

}  // namespace annulus::detail
