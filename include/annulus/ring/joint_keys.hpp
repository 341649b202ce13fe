#pragma once
// Joint keys of a pass: each rank attends to its copy in step 0, and their gradients are summed over the ranks once.

#include "annulus/ring/pass_context.hpp"
#include "annulus/ring/reduction.hpp"
#include "annulus/tensor/operands.hpp"

namespace annulus::detail {

/// The step of this rank's queries with the joint keys, which no rule by position restricts. It refers to `places`.
template <class T, class Space>
Step<T, EveryPair, Space> joint_step(RingPlan const& plan, Rank rank, Operands<T, Space> const& operands,
                                     JointPlaces& places, Progress progress) {
  static constexpr EveryPair every_pair;
  RowRange const queries = plan.joint_queries(rank);
  TensorView<std::int32_t const, 2, Space> ids;
  if (operands.query_documents) ids = operands.query_documents->slice(1, queries.begin, queries.size());
  places.find(queries.size(), plan.request().joint_keys, ids);
  return {.tiles = places.tiles(),
          .rules = plan.request().rules.without_positions(),
          .query_positions = places.query_positions(),
          .key_positions = places.key_positions(),
          .predicate = &every_pair,
          .boolean_mask = places.template mask<Space>(plan.shape()),
          .progress = progress};
}

/// The queries of that step with the joint keys and values. own: what this rank works on.
template <class T, class Space>
StepOperands<T, Space> joint_operands(RowRange queries, StepOperands<T, Space> const& own,
                                      Operands<T, Space> const& operands) {
  return {own.q.slice(axis::sequence, queries.begin, queries.size()), *operands.joint_keys, *operands.joint_values};
}

/// Row `row` of the joint gradients, as [batch, n, kv_heads, dim].
template <class A, class Payload>
TensorView<A, 4, typename Payload::memory_space> joint_gradient(RingPlan const& plan, Payload const& shares, Part part,
                                                                Index row) {
  AttentionShape const& shape = plan.request().shape;
  auto const view = shares.template view<A>(part).slice(axis::sequence, row, 1);
  return {view.data(), {shape.batch, plan.request().joint_keys, shape.kv_heads, view.extent(axis::dim)}};
}

/// The share of a rank in a joint gradient, of the heads that it works on; cleared, unless a lane before has added to
/// it.
template <class A, class Backend, class Payload>
TensorView<A, 4, typename Payload::memory_space> joint_share(RingPlan const& plan, Backend& backend,
                                                             Payload const& shares, Part part, Rank rank) {
  auto const share = joint_gradient<A>(plan, shares, part, rank);
  if (!plan.shares_buffers()) backend.clear(share);
  RankGroups const& groups = plan.groups();
  if (!groups.splits_heads()) return share;
  Index const heads = plan.shape().kv_heads;
  return share.slice(axis::heads, groups.place(rank) * heads, heads);
}

/// Sums the shares of all ranks in rank order, so that all ranks get the same bits, and writes the sums.
template <class A, class C, class B, class G, class Space, class Payload>
void reduce_joint_gradients(RingPlan const& plan, C& communicator, B& backend, Payload const& shares,
                            TensorView<G, 4, Space> d_keys, TensorView<G, 4, Space> d_values, std::uint64_t call,
                            IntervalRecorder const& recorder) {
  int const ranks = communicator.size();
  auto const row_of = [](Rank rank) { return RowRange{rank, rank + 1}; };
  // Seeds of the checksums follow those of the sink logits.
  gather_shares(plan, communicator, backend, shares, plan.joint_gradients().layout, row_of, call, ranks, recorder);
  for (auto const& [part, result] : {std::pair{Part::dk, d_keys}, {Part::dv, d_values}}) {
    auto const sum = joint_gradient<A>(plan, shares, part, ranks);
    backend.clear(sum);
    for (Rank r = 0; r < ranks; ++r)
      backend.add(sum, TensorView<A const, 4, Space>(joint_gradient<A>(plan, shares, part, r)));
    backend.convert(TensorView<A const, 4, Space>(sum), result);
  }
}

}  // namespace annulus::detail
