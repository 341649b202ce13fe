#pragma once
// Construction of the Step that a backend receives from the plan and the operands of a call.

#include <array>
#include <cstdint>

#include "annulus/backend/backend.hpp"
#include "annulus/ring/finite_check.hpp"
#include "annulus/ring/rotation_loop.hpp"
#include "annulus/ring/step_places.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/tensor/operands.hpp"

namespace annulus {

/// Options that act on logits and weights; the mask is in the plan.
struct LogitOptions {
  double softmax_scale = 1;
  double logit_softcap = 0;
  Dropout dropout{};
};

/// Builds the steps of a pass one by one. A step refers to `places`, and is valid until the next one is built.
template <class T, class Predicate, class Space>
class StepBuilder {
 public:
  StepBuilder(RingPlan const& plan, Rank rank, LogitOptions const& logits, Predicate const& predicate,
              Operands<T, Space> const& operands, StepPlaces& places)
      : plan_(plan), rank_(rank), logits_(logits), predicate_(predicate), operands_(operands), places_(places) {}

  /// `segments`: document ids of the rotating rows held at this step, [batch, rows]; without data if none are given.
  /// `progress`: callback that advances pending transfers.
  Step<T, Predicate, Space> build(int index, TensorView<std::int32_t const, 2, Space> segments, Progress progress) {
    places_.find(plan_, rank_, index);
    bool const keys_rotate = plan_.rotation() == Rotation::keys;
    Step<T, Predicate, Space> step{.tiles = places_.tiles(),
                                   .mask = plan_.request().mask,
                                   .softmax_scale = logits_.softmax_scale,
                                   .logit_softcap = logits_.logit_softcap,
                                   .dropout = logits_.dropout,
                                   .query_positions = places_.query_positions(),
                                   .key_positions = places_.key_positions(),
                                   .predicate = &predicate_,
                                   .progress = progress};
    AttentionShape const& shape = plan_.request().shape;
    std::array<Index, 4> const pairs{shape.batch, shape.query_heads, static_cast<Index>(step.query_positions.size()),
                                     plan_.global_keys()};
    if (operands_.bias) step.bias = broadcast(*operands_.bias, pairs);
    if (operands_.mask) step.boolean_mask = broadcast(*operands_.mask, pairs);
    if (operands_.query_segments) {
      step.query_segments = keys_rotate ? *operands_.query_segments : segments;
      step.key_segments = keys_rotate ? segments : *operands_.key_segments;
    }
    return step;
  }

 private:
  RingPlan const& plan_;
  Rank rank_;
  LogitOptions const& logits_;
  Predicate const& predicate_;
  Operands<T, Space> const& operands_;
  StepPlaces& places_;
};

/// Arguments that both passes take. The objects referred to outlive the pass.
template <class C, class B, class Predicate>
struct PassContext {
  RingPlan const& plan;
  C& communicator;
  B& backend;
  LogitOptions const& logits;
  Predicate const& predicate;
  RingBuffers<C, B>& buffers;
  bool require_finite;

  detail::ResultPlace place(int step) const {
    return {communicator.rank(), step, plan.owner(communicator.rank(), step)};
  }
};

}  // namespace annulus
