#pragma once
// Backward pass: runs the plan through the ring loop and the backend, and computes dq, dk, dv and optionally dbias and
// dsinks.

#include <array>
#include <cstdint>
#include <string_view>

#include "annulus/ring/forward_pass.hpp"
#include "annulus/ring/leaf_pass.hpp"
#include "annulus/ring/rotation_loop.hpp"

namespace annulus {

/// Destinations of the gradients: dq [batch, local_queries, query_heads, head_dim], dk [batch, local_keys, kv_heads,
/// head_dim], dv [batch, local_keys, kv_heads, value_dim], dbias with the extents of the bias, dsinks [query_heads, n].
/// dbias and dsinks without data are not computed.
template <class T, class Space = HostMemory>
struct GradientViews {
  TensorView<T, 4, Space> dq, dk, dv;             ///< shaped as q, k and v
  TensorView<T, 4, Space> dbias{};                ///< shaped as the bias; without data: not computed
  TensorView<Accumulator<T>, 2, Space> dsinks{};  ///< [query_heads, n]; without data: not computed
};

namespace detail {

/// Sums the gradients of sink logits over all ranks, in the same order on each, so that all ranks get the same bits: in
/// rank order, or (reproducible) in the tree over the leaves of the queries. Returns the sum, one row. `shares`: the
/// plan's rows of all ranks, of which this rank has set its own, and a last row, which receives the sum. `call`: the
/// number of the call, for the checksums.
template <class A, class C, class B, class Payload>
TensorView<A, 4, typename B::memory_space> sum_over_ranks(RingPlan const& plan, C& communicator, B& backend,
                                                          Payload const& shares, Part part, std::uint64_t call,
                                                          IntervalRecorder const& recorder) {
  using Row = TensorView<A, 4, typename B::memory_space>;
  PayloadLayout const& layout = plan.sink_gradient_layout();
  Rank const rank = communicator.rank();
  int const ranks = communicator.size();
  backend.synchronize();
  for (int i = 0; i + 1 < ranks; ++i) {
    RowRange const leaving = plan.sink_gradient_rows(ring_neighbour(rank, -i, ranks));
    RowRange const coming = plan.sink_gradient_rows(ring_neighbour(rank, -i - 1, ranks));
    std::uint64_t const seed = checksum_seed(call, Channel::reduction, i);
    auto const out = shares.outgoing(leaving, seed);
    auto const in = shares.incoming(coming);
    auto const started = recorder.now();
    auto transfer = communicator.start_shift(Channel::reduction, 1, out, in);
    auto const begin = recorder.now();
    transfer.wait();
    recorder.report_exchange(Channel::reduction, i, started, begin, layout, leaving.size() * layout.bytes_per_row());
    require_intact(shares, coming, seed, Payload::arriving, Channel::reduction, rank, ring_neighbour(rank, -1, ranks));
  }
  auto const rows = shares.template view<A>(part);
  auto const row = [&](Index r) -> Row { return rows.slice(axis::sequence, r, 1); };
  auto const add = [&](Row into, TensorView<A const, 4, typename B::memory_space> from) { backend.add(into, from); };
  Row const sum = row(plan.all_sink_gradient_rows() - 1);
  backend.clear(sum);
  if (!plan.leaves()) {
    for (Rank r = 0; r < ranks; ++r) add(sum, row(r));
    return sum;
  }
  LeafGrid const& grid = plan.leaves()->grid();
  Index const leaves = grid.count(Side::query);
  auto const leaf = [&](Index index) { return row(grid.leaf(Side::query, index).place); };
  for (Index width = 1; width < leaves; width *= 2)
    for (Index begin = 0; begin + width < leaves; begin += 2 * width) add(leaf(begin), leaf(begin + width));
  if (leaves > 0) add(sum, leaf(0));
  return sum;
}

/// own: this rank's q, k, v; dout and output [batch, local_queries, query_heads, value_dim], lse and lse_remainder
/// [batch, query_heads, local_queries] of the forward pass; lse_remainder without data counts as 0, on this rank alone.
/// All ranks have validated their arguments.
template <Communicator C, Backend B, class T, class G, class Predicate, class Space>
void backward_pass(PassContext<C, B, Predicate> const& context, StepOperands<T, Space> const& own,
                   Operands<T, Space> const& operands, TensorView<T const, 4, Space> dout,
                   TensorView<T const, 4, Space> output, TensorView<Accumulator<T> const, 3, Space> lse,
                   TensorView<Accumulator<T> const, 3, Space> lse_remainder, GradientViews<G, Space> const& gradients) {
  using A = AccumulatorOf<B, T>;
  using L = Accumulator<T>;
  using Payload = typename RingBuffers<C, B>::Payload;
  RingPlan const& plan = context.plan;
  B& backend = context.backend;
  RingBuffers<C, B>& buffers = context.buffers;
  Rank const rank = context.communicator.rank();
  AttentionShape const& shape = plan.request().shape;
  Index const batch = shape.batch, query_heads = shape.query_heads;
  bool const keys_rotate = plan.rotation() == Rotation::keys;
  buffers.reserve(backend, context.communicator, plan);
  StepBuilder<T, Predicate, Space> builder(plan, rank, context.predicate, operands, buffers.places);

  auto const delta = buffers.delta.template statistics<A>(Part::delta);
  backend.row_delta(dout, output, delta);

  struct Gradient {
    Part part;
    std::string_view name;
    TensorView<G, 4, Space> result;
    bool travels;

    TensorView<A, 4, Space> sum_in(Payload const& payload) const { return payload.template view<A>(part); }
  };
  std::array<Gradient, 3> const sums{{{Part::dq, "dq", gradients.dq, !keys_rotate},
                                      {Part::dk, "dk", gradients.dk, keys_rotate},
                                      {Part::dv, "dv", gradients.dv, keys_rotate}}};
  auto const clear = [&](Payload const& payload, bool travelling) {
    for (Gradient const& gradient : sums)
      if (gradient.travels == travelling) backend.clear(gradient.sum_in(payload));
  };

  Payload& first = buffers.prefetched[0];
  first.hold(plan.step(rank, 0).sent);
  if (plan.steps() > 1) {
    pack_rotating(backend, own, operands, plan, first);
    if (!keys_rotate) {
      pack(backend, dout, axis::sequence, first.rows(), first.template view<T>(Part::dout));
      pack(backend, lse, 2, first.rows(), first.template statistics<L>(Part::lse));
      auto const packed_remainder = first.template statistics<L>(Part::lse_remainder);
      if (lse_remainder.data())
        pack(backend, lse_remainder, 2, first.rows(), packed_remainder);
      else
        backend.clear(packed_remainder);
      pack(backend, TensorView<A const, 3, Space>(delta), 2, first.rows(), first.template statistics<A>(Part::delta));
    }
  }

  TensorView<A, 4, Space> dbias, dbias_pairs;
  if (gradients.dbias.data()) {
    if constexpr (std::same_as<G, A>) {
      dbias = gradients.dbias;
    } else {
      // A row of the part is [batch|1, query_heads|1, global_keys], as the bias has it.
      Index const stored_batch = operands.bias->extent(0), heads = operands.bias->extent(1), keys = plan.global_keys();
      dbias = {buffers.bias_gradient.template data<A>(Part::dbias),
               {stored_batch, heads, plan.local_queries(rank), keys},
               {heads * keys, keys, stored_batch * heads * keys, 1}};
    }
    dbias_pairs = broadcast(dbias, {batch, query_heads, plan.local_queries(rank), plan.global_keys()});
    backend.clear(dbias);
  }
  if (!plan.leaves()) clear(buffers.resident, false);
  backend.synchronize();

  auto const backward_at = [&](int i, Payload const& here) {
    BackwardOperands<T, L, A, Space> backward{dout, lse, delta, lse_remainder};
    if (i > 0 && !keys_rotate)
      backward = {here.template view<T>(Part::dout), here.template statistics<L>(Part::lse),
                  here.template statistics<A>(Part::delta), here.template statistics<L>(Part::lse_remainder)};
    return backward;
  };
  auto const visit = [&](int i, Payload const& here, Payload const& results, Progress progress) {
    auto const sum_of = [&](Gradient const& gradient) {
      return gradient.sum_in(gradient.travels ? results : buffers.resident);
    };
    clear(results, true);
    backend.add_gradients(builder.build(i, rotating_ids(operands, plan, i, here), progress),
                          operands_at(i, own, plan, here), backward_at(i, here),
                          StepGradients<A, Space>{sum_of(sums[0]), sum_of(sums[1]), sum_of(sums[2]), dbias_pairs});
  };
  auto const inspect_leaves = [&](LeafPair const& pair, auto const& sum_of) {
    if constexpr (std::same_as<Space, HostMemory>) {
      if (!context.require_finite) return;
      backend.synchronize();
      ResultPlace const theirs = context.place(pair.step);
      for (Gradient const& gradient : sums)
        require_finite(gradient.name, sum_of(gradient), gradient.part == Part::dq ? pair.query_row : pair.key_row,
                       gradient.travels ? theirs : theirs.of_own_rows());
    }
  };
  auto const inspect = [&](int i, Payload const& results) {
    if constexpr (std::same_as<Space, HostMemory>) {
      if (!context.require_finite) return;
      ResultPlace const theirs = context.place(i);
      for (Gradient const& gradient : sums) {
        Payload const& payload = gradient.travels ? results : buffers.resident;
        require_finite(gradient.name, gradient.sum_in(payload), payload.rows().begin,
                       gradient.travels ? theirs : theirs.of_own_rows());
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
  auto const sink_gradients_of = [&](Index place, RowRange rows) {
    auto const some = [&](auto const& statistics) { return statistics.slice(2, rows.begin, rows.size()); };
    auto const share = buffers.sink_gradients.template view<A>(Part::dsinks).slice(axis::sequence, place, 1);
    backend.sink_gradients(some(lse), lse_remainder.data() ? some(lse_remainder) : lse_remainder,
                           some(TensorView<A const, 3, Space>(delta)), *operands.sinks,
                           TensorView<A, 2, Space>(share.data(), {query_heads, operands.sinks->extent(1)}));
  };
  auto const finish_operands = [&] {
    if constexpr (!std::same_as<G, A>)
      if (gradients.dbias.data()) convert(dbias, gradients.dbias);
    if (!operands.sinks) return;
    if (!plan.leaves())
      sink_gradients_of(rank, {0, plan.local_queries(rank)});
    else
      for (Index const index : plan.leaves()->grid().of_rank(Side::query, rank)) {
        Leaf const& leaf = plan.leaves()->grid().leaf(Side::query, index);
        sink_gradients_of(leaf.place, leaf.local_rows());
      }
    auto const sum = sum_over_ranks<A>(plan, context.communicator, backend, buffers.sink_gradients, Part::dsinks,
                                       buffers.call, buffers.recorder);
    backend.convert(TensorView<A const, 2, Space>(sum.data(), {query_heads, operands.sinks->extent(1)}),
                    gradients.dsinks);
  };
  auto const finish = [&](Payload const& own_results) {
    for (Gradient const& gradient : sums)
      convert(gradient.sum_in(gradient.travels ? own_results : buffers.resident), gradient.result);
    finish_operands();
  };
  if (plan.leaves()) {
    using Sums = PartialSums<A, Payload>;
    auto const add_leaves = [&](LeafPair const& pair, Payload const& here, Progress progress,
                                std::array<Sums, 2> const& partial) {
      auto const sum_of = [&](Gradient const& gradient) {
        return partial[gradient.travels ? 1 : 0].view(gradient.part);
      };
      auto bias_gradients = dbias_pairs;
      if (bias_gradients.data()) bias_gradients = bias_gradients.slice(2, pair.queries.begin, pair.queries.size());
      backend.add_gradients(
          builder.build_leaves(plan.leaves()->grid(), pair.query_leaf, pair.key_leaf, pair.queries.begin,
                               pair.keys.begin, rotating_ids(operands, plan, pair.step, here), progress),
          pair.rows_of(operands_at(pair.step, own, plan, here)), pair.rows_of(backward_at(pair.step, here)),
          StepGradients<A, Space>{sum_of(sums[0]), sum_of(sums[1]), sum_of(sums[2]), bias_gradients});
      inspect_leaves(pair, sum_of);
    };
    auto const convert_leaf = [&](LeafSums side, RowRange rows, Sums const& partial) {
      for (Gradient const& gradient : sums)
        if (gradient.travels == (side == LeafSums::rotating))
          convert(partial.view(gradient.part), gradient.result.slice(axis::sequence, rows.begin, rows.size()));
    };
    rotate_leaves<A>(context, add_leaves, convert_leaf, finish_operands);
  } else {
    rotate(plan, context.communicator, backend, buffers, visit, inspect, join, finish);
  }
  if constexpr (std::same_as<Space, HostMemory>)
    if (context.require_finite) {
      ResultPlace const place = context.place(plan.steps() - 1).of_own_rows();
      for (Gradient const& gradient : sums) require_finite(gradient.name, gradient.result, 0, place);
      if (gradients.dbias.data()) require_finite("dbias", gradients.dbias.permuted({0, 2, 1, 3}), 0, place);
    }
}

}  // namespace detail

}  // namespace annulus
