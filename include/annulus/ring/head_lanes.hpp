#pragma once
// Lanes of a pass: the heads of a call that each lane of a plan computes.

#include <cstddef>
#include <cstdint>
#include <span>

#include "annulus/backend/backend.hpp"
#include "annulus/ring/pass_context.hpp"
#include "annulus/ring/rotation_loop.hpp"
#include "annulus/tensor/operands.hpp"

namespace annulus::detail {

/// Heads that a plan is for, and their part of views of all heads.
struct LaneHeads {
  RowRange query_heads, kv_heads;

  explicit LaneHeads(RingPlan const& plan) : query_heads(plan.query_heads()), kv_heads(plan.kv_heads()) {}

  /// The part of a view whose axis `heads` counts query heads; a view without data, or with one head for all, is kept.
  template <class T, std::size_t N, class Space>
  TensorView<T, N, Space> of_queries(TensorView<T, N, Space> const& view, std::size_t heads) const {
    return view.data() && view.extent(heads) > 1 ? view.slice(heads, query_heads.begin, query_heads.size()) : view;
  }
  /// The same of k or v.
  template <class T, class Space>
  TensorView<T, 4, Space> of_keys(TensorView<T, 4, Space> const& view) const {
    return view.data() ? view.slice(axis::heads, kv_heads.begin, kv_heads.size()) : view;
  }
  template <class T, class Space>
  StepOperands<T, Space> of(StepOperands<T, Space> const& own) const {
    return {of_queries(own.q, axis::heads), of_keys(own.k), of_keys(own.v)};
  }
  template <class T, class Space>
  Operands<T, Space> of(Operands<T, Space> operands) const {
    if (operands.bias) operands.bias = of_queries(*operands.bias, 1);
    if (operands.mask) operands.mask = of_queries(*operands.mask, 1);
    if (operands.sinks)
      static_cast<OptionalView<Accumulator<T>, 2, Space>&>(operands.sinks) = of_queries(*operands.sinks, 0);
    if (operands.joint_keys) operands.joint_keys = of_keys(*operands.joint_keys);
    if (operands.joint_values) operands.joint_values = of_keys(*operands.joint_values);
    return operands;
  }
};

/// Rotates all lanes of a pass together. begin(context, run) prepares the work of a lane and calls run(lane), which
/// returns when all lanes have been rotated.
template <class C, class B, class Predicate, class Begin>
void rotate_lanes(std::span<PassContext<C, B, Predicate> const> contexts, Begin&& begin) {
  using Run = FunctionRef<void(Lane<C, B> const&)>;
  PassContext<C, B, Predicate> const& first = contexts.front();
  auto const run = [&](Lane<C, B> const& lane) {
    auto const run_both = [&](Lane<C, B> const& other) {
      std::array const both{lane, other};
      rotate(first.communicator, first.backend, std::span<Lane<C, B> const>(both));
    };
    if (contexts.size() > 1)
      begin(contexts[1], Run(run_both));
    else
      rotate(first.communicator, first.backend, std::span<Lane<C, B> const>(&lane, 1));
  };
  begin(first, Run(run));
}

}  // namespace annulus::detail
