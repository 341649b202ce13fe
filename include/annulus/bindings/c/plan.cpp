// Plans of the C interface.

#include <utility>

#include "annulus/attention/validate.hpp"
#include "annulus/backend/backend.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/bindings/c/errors.hpp"
#include "annulus/bindings/c/handles.hpp"
#include "annulus/bindings/c/options.hpp"
#include "annulus/bindings/c/tensors.hpp"
#include "annulus/schedule/best_plan.hpp"

using namespace annulus;
using namespace annulus::bindings;

struct annulus_plan {
  RingPlan plan;
};

namespace {

Pass pass_of(annulus_pass pass) {
  detail::check<UnsupportedError>(pass == ANNULUS_PASS_FORWARD || pass == ANNULUS_PASS_BACKWARD, "pass is ",
                                  static_cast<int>(pass), "; accepted: 0 forward, 1 backward");
  return pass == ANNULUS_PASS_FORWARD ? Pass::forward : Pass::backward;
}

AttentionShape shape_of(annulus_plan_request const& given) {
  AttentionShape const shape{.batch = static_cast<Index>(given.batch),
                             .query_heads = static_cast<Index>(given.query_heads),
                             .kv_heads = static_cast<Index>(given.kv_heads),
                             .head_dim = static_cast<Index>(given.head_dim),
                             .value_dim = static_cast<Index>(given.value_dim)};
  detail::check<ShapeError>(
      shape.batch >= 0 && shape.query_heads >= 1 && shape.kv_heads >= 1 && shape.head_dim >= 1 && shape.value_dim >= 1,
      "plan: batch is ", shape.batch, ", query_heads ", shape.query_heads, ", kv_heads ", shape.kv_heads, ", head_dim ",
      shape.head_dim, ", value_dim ", shape.value_dim, "; accepted: at least 1 each, batch at least 0");
  detail::check<ShapeError>(shape.query_heads % shape.kv_heads == 0, "plan: query_heads is ", shape.query_heads,
                            ", kv_heads ", shape.kv_heads, "; query_heads must be a multiple of kv_heads");
  return shape;
}

/// The request of the plan that a call with these operands makes.
PlanRequest request_of(annulus_plan_request const& given, Options const& options) {
  validate_rules(rules_of(options));
  if (given.joint_keys > 0) detail::validate_joint_keys(rules_of(options));
  auto const queries = static_cast<Index>(given.queries), keys = static_cast<Index>(given.keys);
  auto const bias_batch = static_cast<Index>(given.bias_batch), bias_heads = static_cast<Index>(given.bias_heads);
  detail::check<ShapeError>(bias_batch >= 0 && bias_heads >= 0 && (bias_batch > 0) == (bias_heads > 0) &&
                                given.sinks >= 0 && given.joint_keys >= 0,
                            "plan: bias_batch is ", bias_batch, ", bias_heads ", bias_heads, ", sinks ", given.sinks,
                            ", joint_keys ", given.joint_keys,
                            "; accepted: 0 or more, both extents of the bias or neither");
  detail::check<ShapeError>(bias_batch <= 1 || bias_batch == given.batch, "plan: bias_batch is ", bias_batch,
                            ", batch ", given.batch, "; accepted: 1 or the batch, or 0 for no bias");
  detail::check<ShapeError>(bias_heads <= 1 || bias_heads == given.query_heads, "plan: bias_heads is ", bias_heads,
                            ", query_heads ", given.query_heads, "; accepted: 1 or query_heads, or 0 for no bias");
  bool const bias = bias_batch > 0, bias_gradient = flag_of(given.bias_gradient, "bias_gradient"),
             mask = flag_of(given.mask, "mask");
  detail::check<UnsupportedError>(bias || !bias_gradient, "plan: bias_gradient is set but no bias is given");
  return with_scalar(given.dtype, "the plan", [&]<class T>(std::type_identity<T>) {
    constexpr int sum_bytes = sizeof(Accumulator<T>);
    PlanRequest request{.pass = pass_of(given.pass),
                        .shape = shape_of(given),
                        .query_lengths = options.sharding.lengths(Side::query, given.ranks, queries),
                        .key_lengths = options.sharding.lengths(Side::key, given.ranks, keys),
                        .sharding = options.sharding,
                        .rules = rules_of(options),
                        .rotation = options.rotation,
                        .schedule = options.schedule,
                        .ranks_per_group = options.ranks_per_group,
                        .wire = options.wire,
                        .element_bytes = sizeof(T),
                        .accumulator_bytes = sum_bytes,
                        .lse_bytes = sum_bytes,
                        .gradient_bytes = sizeof(T),
                        .bias = {bias_batch, bias_heads},
                        .mask = {mask ? 1 : 0, mask ? 1 : 0},
                        .sinks = static_cast<Index>(given.sinks),
                        .joint_keys = static_cast<Index>(given.joint_keys),
                        .document_ids = flag_of(given.document_ids, "document_ids"),
                        .elementwise = mask,
                        .bound_to_queries = bias || mask,
                        .zero_copy = flag_of(given.zero_copy, "zero_copy"),
                        .checked = options.checked.value_or(false)};
    request.rules.softmax_scale = request.rules.scale(request.shape.head_dim);
    request.rules.query_offset = query_offset_of(request.rules, queries, keys);
    if (bias_gradient) add_bias_gradient(request, ClosingBackend<CpuBackend>);
    return request;
  });
}

void require_place(RingPlan const& plan, int rank, int step) {
  detail::check<ShapeError>(rank >= 0 && rank < plan.ranks() && step >= 0 && step < plan.steps(), "plan: rank ", rank,
                            ", step ", step, "; accepted: 0 to ", plan.ranks() - 1, " and 0 to ", plan.steps() - 1);
}

}  // namespace

annulus_status annulus_plan_create(annulus_plan_request const* request, annulus_options const* options,
                                   annulus_plan** plan) {
  return guarded([&] {
    require_given(plan, "plan");
    Options const given = options_of(options);
    *plan = new annulus_plan{best_plan(request_of(require_given(request, "request"), given), given.rates)};
  });
}

annulus_status annulus_attention_plan(annulus_attention const* attention, annulus_pass pass, annulus_plan** plan) {
  return guarded([&] {
    require_given(plan, "plan");
    auto const& passes = require_given(attention, "attention").passes;
    Pass const which = pass_of(pass);
    detail::check<Error>(passes && passes->plan(which),
                         "the plan is known after the first call of the pass, as long as the ring exists; before it, "
                         "annulus_plan_create gives it");
    *plan = new annulus_plan{*passes->plan(which)};
  });
}

void annulus_plan_free(annulus_plan* plan) { delete plan; }

annulus_status annulus_plan_get_totals(annulus_plan const* handle, annulus_plan_totals* totals) {
  return guarded([&] {
    RingPlan const& plan = require_given(handle, "plan").plan;
    require_given(totals, "totals") = {
        plan.ranks(), plan.steps(),
        plan.rotation() == Rotation::queries ? ANNULUS_ROTATION_QUERIES : ANNULUS_ROTATION_KEYS,
        plan.total_bytes_sent(), plan.imbalance()};
  });
}

annulus_status annulus_plan_get_rank(annulus_plan const* handle, int rank, annulus_rank_plan* rank_plan) {
  return guarded([&] {
    RingPlan const& plan = require_given(handle, "plan").plan;
    require_place(plan, rank, 0);
    require_given(rank_plan, "rank_plan") = {plan.local_queries(rank), plan.local_keys(rank), plan.multiply_adds(rank),
                                             plan.bytes_sent(rank), plan.peak_buffer_bytes(rank)};
  });
}

annulus_status annulus_plan_get_step(annulus_plan const* handle, int rank, int step, annulus_step_plan* step_plan) {
  return guarded([&] {
    RingPlan const& plan = require_given(handle, "plan").plan;
    require_place(plan, rank, step);
    PlannedStep const& planned = plan.step(rank, step);
    require_given(step_plan, "step_plan") = {planned.owner, planned.visible_pairs, planned.multiply_adds,
                                             planned.prefetched_bytes, planned.carried_bytes};
  });
}
