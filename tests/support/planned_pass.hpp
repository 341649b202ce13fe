#pragma once
// Plan request and backend problem of a pass of a ring problem, made without running the pass.

#include <cmath>
#include <string>

#include "annulus/backend/backend.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/schedule/best_plan.hpp"
#include "support/ring_problem.hpp"

namespace annulus_test {

/// The plan request of a pass over operands of T by a backend with accumulators A; checksums as in the options. closes:
/// it is a ClosingBackend.
template <class T, class A = annulus::Accumulator<T>>
annulus::PlanRequest plan_request(RingProblem const& problem, annulus::Pass pass, bool predicate = false,
                                  bool closes = true) {
  OracleProblem const& d = problem.dense;
  annulus::PlanRequest request{.pass = pass,
                               .shape = {.batch = d.batch,
                                         .query_heads = d.query_heads,
                                         .kv_heads = d.kv_heads,
                                         .head_dim = d.head_dim,
                                         .value_dim = d.value_dim},
                               .query_lengths = problem.query_lengths,
                               .key_lengths = problem.key_lengths,
                               .sharding = problem.options.sharding,
                               .rules = annulus::rules_of(problem.options),
                               .rotation = problem.options.rotation,
                               .schedule = problem.options.schedule,
                               .ranks_per_group = problem.options.ranks_per_group,
                               .wire = problem.options.wire,
                               .element_bytes = sizeof(T),
                               .accumulator_bytes = sizeof(A),
                               .lse_bytes = sizeof(annulus::Accumulator<T>),
                               .gradient_bytes = sizeof(T),
                               .sinks = d.sinks ? d.sinks->count : 0,
                               .joint_keys = problem.joint_length,
                               .document_ids = d.query_documents.has_value(),
                               .elementwise = predicate || d.mask.has_value(),
                               .bound_to_queries = d.bias.has_value() || d.mask.has_value(),
                               .checked = problem.options.checked.value_or(false)};
  request.rules.softmax_scale = request.rules.scale(d.head_dim);
  request.rules.query_offset = d.query_offset;
  if (d.bias) request.bias = {d.bias->batch, d.bias->heads};
  if (d.mask) request.mask = {d.mask->batch, d.mask->heads};
  // run_rank requests dbias, in elements T, whenever there is a bias.
  if (d.bias) annulus::add_bias_gradient(request, closes);
  return request;
}

template <class T, class A = annulus::Accumulator<T>>
annulus::RingPlan plan_of(RingProblem const& problem, annulus::Pass pass, bool predicate = false,
                          bool zero_copy = false, bool closes = true) {
  annulus::PlanRequest request = plan_request<T, A>(problem, pass, predicate, closes);
  request.zero_copy = zero_copy;
  return annulus::best_plan(request);
}

/// The problem that the backend of a rank must support.
template <class T>
annulus::Problem backend_problem(RingProblem const& problem, annulus::Pass pass, int rank, bool predicate = false) {
  annulus::PlanRequest const request = plan_request<T>(problem, pass, predicate);
  OracleProblem const& d = problem.dense;
  auto const r = static_cast<std::size_t>(rank);
  return {.pass = pass,
          .data_type = annulus::data_type<T>,
          .shape = request.shape,
          .ranks = problem.ranks,
          .local_queries = problem.query_lengths[r],
          .local_keys = problem.key_lengths[r],
          .rules = request.rules,
          .bias = d.bias.has_value(),
          .bias_gradient = d.bias.has_value(),
          .boolean_mask = d.mask.has_value(),
          .predicate = predicate,
          .document_ids = d.query_documents.has_value(),
          .sinks = request.sinks};
}

/// The reason why a backend of a rank does not support a problem; empty: all support it.
template <class T, class Backend>
std::string refusal_of(Backend const& backend, RingProblem const& problem, bool predicate = false) {
  for (auto pass : {annulus::Pass::forward, annulus::Pass::backward})
    for (int rank = 0; rank < problem.ranks; ++rank) {
      annulus::Support const support = backend.supports(backend_problem<T>(problem, pass, rank, predicate));
      if (!support) return support.reason();
    }
  return {};
}

}  // namespace annulus_test
