#pragma once
// The plan that a call asks for, and whether the backend supports what it makes the ranks compute.

#include <span>
#include <utility>

#include "annulus/attention/collective_call.hpp"
#include "annulus/attention/options.hpp"
#include "annulus/backend/backend.hpp"
#include "annulus/schedule/best_plan.hpp"
#include "annulus/tensor/operands.hpp"

namespace annulus::detail {

/// The plan of a call with sums of type A. `records`: of all ranks; `gradient_bytes`: of an element of dq, dk, dv and
/// dbias in the backward pass.
template <class A, class T, class Space>
PlanRequest request_of(CollectiveCall const& call, Problem const& problem, Options const& options,
                       Operands<T, Space> const& operands, std::span<CallRecord const> records, bool zero_copy,
                       int gradient_bytes) {
  PlanRequest request{.pass = call.pass,
                      .shape = problem.shape,
                      .query_lengths = {},
                      .key_lengths = {},
                      .sharding = options.sharding,
                      .rules = problem.rules,
                      .rotation = options.rotation,
                      .schedule = options.schedule,
                      .group = options.group,
                      .wire = options.wire,
                      .element_bytes = static_cast<int>(sizeof(T)),
                      .accumulator_bytes = static_cast<int>(sizeof(A)),
                      .lse_bytes = static_cast<int>(sizeof(Accumulator<T>)),
                      .gradient_bytes = gradient_bytes,
                      .sinks = operands.sinks ? operands.sinks->extent(1) : 0,
                      .joint_keys = problem.joint_keys,
                      .segments = static_cast<bool>(operands.query_segments),
                      .elementwise = problem.predicate || operands.mask,
                      .bound_to_queries = operands.bias || operands.mask,
                      .zero_copy = zero_copy && options.schedule != Schedule::double_ring,
                      .checked = call.checked};
  for (CallRecord const& other : records) {
    request.query_lengths.push_back(other.local_queries);
    request.key_lengths.push_back(other.local_keys);
  }
  if (operands.bias) request.bias = {operands.bias->extent(0), operands.bias->extent(1)};
  if (operands.mask) request.mask = {operands.mask->extent(0), operands.mask->extent(1)};
  if (operands.bias_gradient)
    request.bias_gradient_elements = operands.bias->extent(0) * operands.bias->extent(1) * operands.bias->extent(3);
  return request;
}

/// Throws UnsupportedError, on all ranks, if the backend does not support the rows and heads that the ranks of a group
/// work on together.
template <class B>
void require_support_of_groups(B const& backend, Problem problem, RingPlan const& plan) {
  if (plan.groups().size() == 1) return;
  problem.shape = plan.shape();
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    problem.local_queries = plan.groups().rows(Side::query, rank);
    problem.local_keys = plan.groups().rows(Side::key, rank);
    Support const support = backend.supports(std::as_const(problem));
    check<UnsupportedError>(static_cast<bool>(support), support.reason());
  }
}

}  // namespace annulus::detail
