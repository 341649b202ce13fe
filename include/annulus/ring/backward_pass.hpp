#pragma once
// Backward pass: runs the plan through the ring loop and the backend, and computes dq, dk, dv and optionally dbias and
// dsinks.

#include <array>
#include <cstdint>
#include <string_view>

#include "annulus/ring/forward_pass.hpp"
#include "annulus/ring/joint_keys.hpp"
#include "annulus/ring/leaf_pass.hpp"
#include "annulus/ring/reduction.hpp"
#include "annulus/ring/rotation_loop.hpp"

namespace annulus {

/// Destinations of the gradients: dq [batch, local_queries, query_heads, head_dim], dk [batch, local_keys, kv_heads,
/// head_dim], dv [batch, local_keys, kv_heads, value_dim], dbias with the extents of the bias, dsinks [query_heads, n].
/// dbias and dsinks without data are not computed. They may not overlap the operands, which are read while they are
/// written; after an error their elements are unspecified.
template <class T, class Space = HostMemory>
struct GradientViews {
  TensorView<T, 4, Space> dq, dk, dv;             ///< shaped as q, k and v
  TensorView<T, 4, Space> dbias{};                ///< shaped as the bias; without data: not computed
  TensorView<Accumulator<T>, 2, Space> dsinks{};  ///< [query_heads, n]; without data: not computed
  TensorView<T, 4, Space> d_joint_keys{};         ///< shaped as joint_keys; required with these
  TensorView<T, 4, Space> d_joint_values{};       ///< shaped as joint_values; required with these
};

namespace detail {

/// Delta of this rank's queries, in the buffers that lanes share, where the first of these computes it. dout and output
/// [batch, local_queries, query_heads, value_dim], with the heads of the lane.
template <Communicator C, Backend B, class T, class Predicate, class Space>
TensorView<AccumulatorOf<B, T>, 3, Space> find_delta(PassContext<C, B, Predicate> const& context,
                                                     TensorView<T const, 4, Space> dout,
                                                     TensorView<T const, 4, Space> output) {
  auto& payload = context.shared.delta;
  bool const is_done = context.plan.shares_buffers();
  Index const queries = context.plan.local_queries(context.communicator.rank());
  if (!is_done) payload.reserve(context.backend, context.plan.delta_layout(), queries);
  payload.hold({0, queries});
  auto const delta = payload.template statistics<AccumulatorOf<B, T>>(Part::delta);
  if (!is_done) context.backend.row_delta(dout, output, delta);
  return delta;
}

/// Gradients of the sink logits, [query_heads, n], from what this rank knows of its own queries, summed over all ranks.
/// context: of a lane, whose heads the views have.
template <Communicator C, Backend B, class T, class L, class A, class Predicate, class Space>
void add_sink_gradients(PassContext<C, B, Predicate> const& context, BackwardOperands<T, L, A, Space> const& known,
                        TensorView<L const, 2, Space> sinks, TensorView<L, 2, Space> dsinks) {
  RingPlan const& plan = context.plan;
  Rank const rank = context.communicator.rank();
  auto const& shares = context.buffers.sink_gradients;
  auto const one_row = [&](A* data) { return TensorView<A, 2, Space>(data, sinks.extents()); };
  auto const find_share = [&](Index place, RowRange rows) {
    auto const some = [&](auto const& statistics) { return statistics.slice(2, rows.begin, rows.size()); };
    auto const share = shares.template view<A>(Part::dsinks).slice(axis::sequence, place, 1);
    context.backend.sink_gradients(some(known.lse),
                                   known.lse_remainder.data() ? some(known.lse_remainder) : known.lse_remainder,
                                   some(known.delta), sinks, one_row(share.data()));
  };
  if (!plan.leaves())
    find_share(rank, {0, plan.local_queries(rank)});
  else
    for (Index const index : plan.leaves()->grid().of_rank(Side::query, rank)) {
      Leaf const& leaf = plan.leaves()->grid().leaf(Side::query, index);
      find_share(leaf.place, leaf.local_rows());
    }
  auto const sum = sum_over_ranks<A>(plan, context.communicator, context.backend, shares, Part::dsinks,
                                     context.buffers.call, context.buffers.recorder);
  context.backend.convert(TensorView<A const, 2, Space>(one_row(sum.data())), dsinks);
}

/// The backward pass of one lane, on its heads and rows; see backward_pass. dbias: the sums that the lane adds to, or
/// written_dbias, shaped as the bias; gradients.dbias is not used. run(lane) rotates all lanes.
template <Communicator C, Backend B, class T, class G, class Predicate, class Space>
void backward_lane(PassContext<C, B, Predicate> const& context, StepOperands<T, Space> const& given,
                   Operands<T, Space> const& operands,
                   BackwardOperands<T, Accumulator<T>, AccumulatorOf<B, T>, Space> const& known,
                   GradientViews<G, Space> const& gradients, TensorView<AccumulatorOf<B, T>, 4, Space> dbias,
                   TensorView<G, 4, Space> written_dbias, FunctionRef<void(Lane<C, B> const&)> run) {
  using A = AccumulatorOf<B, T>;
  using L = Accumulator<T>;
  using Known = BackwardOperands<T, L, A, Space>;
  using Payload = typename RingBuffers<C, B>::Payload;
  RingPlan const& plan = context.plan;
  B& backend = context.backend;
  RingBuffers<C, B>& buffers = context.buffers;
  Rank const rank = context.communicator.rank();
  bool const keys_rotate = plan.rotation() == Rotation::keys;
  StepBuilder<T, Predicate, Space> builder(plan, rank, context.predicate, operands, buffers.places);

  Payload const& resident = context.shared.resident;
  bool const is_first = !plan.shares_buffers();
  StepOperands<T, Space> const own = context.shared.wire.rounded(given, !is_first);

  struct Gradient {
    Part part;
    std::string_view name;
    TensorView<G, 4, Space> result;  ///< of the rows that the lane works on
    Index first_row;                 ///< of these
    bool travels;
    bool in_result;  ///< summed in the result itself instead of a payload

    Side side() const { return part == Part::dq ? Side::query : Side::key; }
    TensorView<A, 4, Space> sum_in(Payload const& payload) const {
      if constexpr (std::same_as<G, A>)
        if (in_result) return result;
      return payload.template view<A>(part);
    }
  };
  auto const is_contiguous = [](auto const& view) { return view.stride(axis::dim) == 1; };
  bool const writes_gradients = ClosingBackend<B> && std::same_as<G, T> && plan.steps() == 1 && keys_rotate &&
                                !plan.leaves() && !plan.halves_rows() && !plan.groups().joins_results() &&
                                !operands.joint_keys && !context.require_finite && is_contiguous(gradients.dq) &&
                                is_contiguous(gradients.dk) && is_contiguous(gradients.dv);
  auto const gradient_of = [&](Part part, std::string_view name, TensorView<G, 4, Space> const& result) {
    bool const travels = (part == Part::dq) != keys_rotate;
    bool const leaves_rank = plan.leaves() || plan.groups().joins_results() || (travels && plan.steps() > 1);
    return Gradient{part,
                    name,
                    travels ? held_at_start(plan, rank, result, axis::sequence) : result,
                    travels ? plan.rotating_rows(rank).begin : 0,
                    travels,
                    std::same_as<G, A> && !leaves_rank && result.stride(axis::dim) == 1};
  };
  std::array<Gradient, 3> const sums{gradient_of(Part::dq, "dq", gradients.dq),
                                     gradient_of(Part::dk, "dk", gradients.dk),
                                     gradient_of(Part::dv, "dv", gradients.dv)};
  auto const clear = [&](Payload const& payload, bool travelling) {
    for (Gradient const& gradient : sums)
      if (gradient.travels == travelling && !writes_gradients) backend.clear(gradient.sum_in(payload));
  };

  Payload& first = buffers.prefetched[0];
  first.hold(plan.step(rank, 0).sent);
  if (plan.steps() > 1) {
    pack_rotating(backend, buffers.wire, own, operands, plan, first);
    if (!keys_rotate) {
      pack_operand(backend, buffers.wire, known.dout, Part::dout, first);
      pack(backend, known.lse, 2, first.rows(), first.template statistics<L>(Part::lse));
      auto const packed_remainder = first.template statistics<L>(Part::lse_remainder);
      if (known.lse_remainder.data())
        pack(backend, known.lse_remainder, 2, first.rows(), packed_remainder);
      else
        backend.clear(packed_remainder);
      pack(backend, known.delta, 2, first.rows(), first.template statistics<A>(Part::delta));
    }
  }

  TensorView<A, 4, Space> dbias_pairs;
  if (dbias.data())
    dbias_pairs = broadcast(dbias, {plan.shape().batch, plan.query_heads().size(),
                                    plan.groups().rows(Side::query, rank), plan.global_keys()});
  if (!plan.leaves() && is_first) clear(resident, false);
  backend.synchronize();

  auto const backward_at = [&](int i, Payload const& here) {
    auto backward = known;
    if (keys_rotate) return backward;
    auto const own_rows = [&](auto const& view, std::size_t sequence) {
      return held_at_start(plan, rank, view, sequence);
    };
    if (i == 0)
      backward = {own_rows(known.dout, axis::sequence), own_rows(known.lse, 2), own_rows(known.delta, 2),
                  own_rows(known.lse_remainder, 2)};
    else
      backward = {here.template view<T>(Part::dout), here.template statistics<L>(Part::lse),
                  here.template statistics<A>(Part::delta), here.template statistics<L>(Part::lse_remainder)};
    return backward;
  };
  auto const visit = [&](int i, Payload const& here, Payload const& results, Progress progress) {
    auto const sum_of = [&](Gradient const& gradient) {
      return gradient.sum_in(gradient.travels ? results : resident);
    };
    // dk and dv that travel are new in each step: rows are written once instead of cleared, read and written.
    bool const overwrites = ClosingBackend<B> && keys_rotate;
    if (!overwrites) clear(results, true);
    if (i == 0 && operands.joint_keys) {
      RowRange const queries = plan.joint_queries(rank);
      Index const begin = queries.begin - (keys_rotate ? 0 : results.rows().begin);
      auto const rows = [&](auto const& view, std::size_t sequence) {
        return view.data() ? view.slice(sequence, begin, queries.size()) : view;
      };
      auto const share = [&](Part part) {
        return joint_share<A>(plan, backend, context.shared.joint_gradients, part, rank);
      };
      auto const all = backward_at(0, here);
      detail::add_gradients(
          backend, joint_step(plan, rank, operands, buffers.joint_places, progress),
          joint_operands(queries, own, operands),
          Known{rows(all.dout, axis::sequence), rows(all.lse, 2), rows(all.delta, 2), rows(all.lse_remainder, 2)},
          StepGradients<A, Space>{rows(sum_of(sums[0]), axis::sequence), share(Part::dk), share(Part::dv), {}});
    }
    constexpr Sums rows = Sums::queries | Sums::keys;
    Sums const pairs = written_dbias.data() ? Sums::pairs : Sums::none;
    auto step = builder.build(i, ids_at(i, operands, plan, rank, here), progress);
    step.opens = pairs | (writes_gradients ? rows : overwrites ? Sums::keys : Sums::none);
    step.closes = pairs | (writes_gradients ? rows : Sums::none);
    detail::add_gradients(backend, step, operands_at(i, own, plan, rank, here), backward_at(i, here),
                          StepGradients<A, Space>{sum_of(sums[0]), sum_of(sums[1]), sum_of(sums[2]), dbias_pairs},
                          GradientResults<G, Space>{sums[0].result, sums[1].result, sums[2].result, written_dbias});
  };
  auto const inspect_leaves = [&](LeafPair const& pair, auto const& sum_of) {
    if constexpr (std::same_as<Space, HostMemory>) {
      if (!context.require_finite) return;
      backend.synchronize();
      ResultPlace const theirs = context.place(pair.step);
      for (Gradient const& gradient : sums)
        require_finite(gradient.name, sum_of(gradient), gradient.part == Part::dq ? pair.query_row : pair.key_row,
                       (gradient.travels ? theirs : theirs.of_own_rows()).of_rows(plan, gradient.side()));
    }
  };
  auto const inspect = [&](int i, Payload const& results) {
    if constexpr (std::same_as<Space, HostMemory>) {
      if (!context.require_finite) return;
      ResultPlace const theirs = context.place(i);
      for (Gradient const& gradient : sums) {
        Payload const& payload = gradient.travels ? results : resident;
        require_finite(gradient.name, gradient.sum_in(payload), payload.rows().begin,
                       (gradient.travels ? theirs : theirs.of_own_rows()).of_rows(plan, gradient.side()));
      }
    }
  };
  auto const join = [&](Payload const& into, Payload const& from, int) {
    for (Gradient const& gradient : sums)
      if (gradient.travels)
        backend.add(rows_held_by(from, into, gradient.sum_in(into), axis::sequence),
                    TensorView<A const, 4, Space>(gradient.sum_in(from)));
  };
  auto const convert = [&](TensorView<A, 4, Space> sum, TensorView<G, 4, Space> result) {
    backend.convert(TensorView<A const, 4, Space>(sum), result);
  };
  auto const finish_operands = [&] {
    if (!is_first) return;
    if (gradients.d_joint_keys.data())
      reduce_joint_gradients<A>(plan, context.communicator, backend, buffers.joint_gradients, gradients.d_joint_keys,
                                gradients.d_joint_values, buffers.call, buffers.recorder);
    if (gradients.dsinks.data()) add_sink_gradients(context, known, *operands.sinks, gradients.dsinks);
  };
  auto const is_written = [&](Gradient const& gradient) {
    return gradient.travels || (is_first && !plan.groups().joins_results());
  };
  auto const finish = [&](Payload const& own_results) {
    for (Gradient const& gradient : sums)
      if (is_written(gradient) && !gradient.in_result && !writes_gradients)
        convert(gradient.sum_in(gradient.travels ? own_results : resident), gradient.result);
    finish_operands();
  };
  if (plan.leaves()) {
    using Sums = PartialSums<A, Payload>;
    auto const add_leaves = [&](LeafPair const& pair, Payload const& here, Progress progress,
                                std::array<Sums, 2> const& partial) {
      auto const sum_of = [&](Gradient const& gradient) {
        return partial[gradient.travels ? 1 : 0].view(gradient.part);
      };
      auto const of_queries = [&](auto const& pairs) {
        return pairs.data() ? pairs.slice(2, pair.queries.begin, pair.queries.size()) : pairs;
      };
      auto step = builder.build_leaves(plan.leaves()->grid(), pair.query_leaf, pair.key_leaf, pair.queries.begin,
                                       pair.keys.begin, ids_at(pair.step, operands, plan, rank, here), progress);
      if (written_dbias.data()) step.opens = step.closes = annulus::Sums::pairs;
      detail::add_gradients(
          backend, step, pair.rows_of(operands_at(pair.step, own, plan, rank, here)),
          pair.rows_of(backward_at(pair.step, here)),
          StepGradients<A, Space>{sum_of(sums[0]), sum_of(sums[1]), sum_of(sums[2]), of_queries(dbias_pairs)},
          GradientResults<G, Space>{.dbias = of_queries(written_dbias)});
      inspect_leaves(pair, sum_of);
    };
    auto const convert_leaf = [&](LeafSums side, RowRange rows, Sums const& partial) {
      for (Gradient const& gradient : sums)
        if (gradient.travels == (side == LeafSums::rotating))
          convert(partial.view(gradient.part),
                  gradient.result.slice(axis::sequence, rows.begin - gradient.first_row, rows.size()));
    };
    rotate_leaves<A>(context, add_leaves, convert_leaf, finish_operands, run);
  } else {
    run({plan, buffers, visit, inspect, join, finish});
  }
  if constexpr (std::same_as<Space, HostMemory>)
    if (context.require_finite) {
      ResultPlace const place = context.place(plan.steps() - 1).of_own_rows();
      for (Gradient const& gradient : sums)
        if (is_written(gradient))
          require_finite(gradient.name, gradient.result, gradient.first_row, place.of_rows(plan, gradient.side()));
      if (is_first && gradients.d_joint_keys.data()) {
        require_finite("d_joint_keys", gradients.d_joint_keys, 0, place.of_rows(plan, Side::key));
        require_finite("d_joint_values", gradients.d_joint_values, 0, place.of_rows(plan, Side::key));
      }
    }
}

/// lanes: contexts of the plan's lanes. own: the q, k, v that this rank works on; known(lane, heads): dout, lse, delta
/// and lse_remainder of these queries, with the heads of the lane, where lse_remainder without data counts as 0, on
/// this rank alone. All ranks have validated their arguments. Of a plan whose groups join results, gradients that stay
/// are left in buffers.resident and buffers.bias_gradient instead of being written.
template <Communicator C, Backend B, class T, class G, class Predicate, class Space, class Known>
void backward_pass(std::span<PassContext<C, B, Predicate> const> lanes, StepOperands<T, Space> const& own,
                   Operands<T, Space> const& operands, Known&& known, GradientViews<G, Space> const& gradients) {
  using A = AccumulatorOf<B, T>;
  PassContext<C, B, Predicate> const& first = lanes.front();
  RingPlan const& plan = first.plan;
  B& backend = first.backend;
  for (auto const& context : lanes) context.buffers.reserve(backend, context.communicator, context.plan);
  bool const dbias_joined_later = !plan.group_exchange().after(GroupRows::pairs).empty();
  bool const writes_dbias = gradients.dbias.data() && !dbias_joined_later;
  TensorView<A, 4, Space> dbias;
  TensorView<G, 4, Space> written_dbias;
  if constexpr (ClosingBackend<B> && std::same_as<G, T>) {
    // Pairs that share an element of the caller's view are summed in it, if it has the type of sums.
    bool shared = false;
    for (std::size_t a = 0; a < 4; ++a)
      shared = shared || (gradients.dbias.stride(a) == 0 && gradients.dbias.extent(a) > 1);
    bool const written = plan.request().writes_bias_gradient && !(std::same_as<G, A> && shared);
    if (writes_dbias && written) written_dbias = gradients.dbias;
  }
  if (written_dbias.data()) {
    // One rank's step writes all elements. Of several ranks, a step may be skipped.
    if (plan.ranks() > 1 || plan.leaves()) backend.clear(written_dbias);
  } else if (gradients.dbias.data() || dbias_joined_later) {
    if constexpr (std::same_as<G, A>) dbias = gradients.dbias;
    if (!std::same_as<G, A> || dbias_joined_later) {
      // A row of the part is [batch|1, query_heads|1, global_keys], as the bias has it.
      Index const stored_batch = operands.bias->extent(0), heads = operands.bias->extent(1);
      Index const queries = own.q.extent(axis::sequence), keys = plan.global_keys();
      dbias = {first.buffers.bias_gradient.template data<A>(Part::dbias),
               {stored_batch, heads, queries, keys},
               {heads * keys, keys, stored_batch * heads * keys, 1}};
    }
    backend.clear(dbias);
  }
  rotate_lanes(lanes, [&](PassContext<C, B, Predicate> const& context, FunctionRef<void(Lane<C, B> const&)> run) {
    LaneHeads const heads(context.plan);
    GradientViews<G, Space> const of_lane{heads.of_queries(gradients.dq, axis::heads),
                                          heads.of_keys(gradients.dk),
                                          heads.of_keys(gradients.dv),
                                          {},
                                          heads.of_queries(gradients.dsinks, 0),
                                          heads.of_keys(gradients.d_joint_keys),
                                          heads.of_keys(gradients.d_joint_values)};
    backward_lane<C, B, T>(context, heads.of(own), heads.of(operands), known(context, heads), of_lane,
                           heads.of_queries(dbias, 1), heads.of_queries(written_dbias, 1), run);
  });
  if (!writes_dbias) return;
  if constexpr (!std::same_as<G, A>)
    if (!written_dbias.data()) {
      backend.convert(TensorView<A const, 4, Space>(dbias), gradients.dbias);
      backend.synchronize();
    }
  if constexpr (std::same_as<Space, HostMemory>)
    if (first.require_finite)
      require_finite("dbias", gradients.dbias.permuted({0, 2, 1, 3}), 0, first.place(plan.steps() - 1).of_own_rows());
}

}  // namespace detail

}  // namespace annulus
