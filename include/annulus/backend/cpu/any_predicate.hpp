#pragma once
// Type-erased mask predicates, and a step that holds one.

#include "annulus/backend/step.hpp"

namespace annulus::cpu {

/// Type-erased reference to a predicate, so that kernels are compiled once for all predicate types.
struct AnyPredicate {
  void const* object;
  bool (*call)(void const*, Index, Index, Index, Index);

  template <class Predicate>
  static AnyPredicate of(Predicate const& predicate) {
    return {&predicate, [](void const* p, Index batch, Index head, Index query, Index key) -> bool {
              return (*static_cast<Predicate const*>(p))(batch, head, query, key);
            }};
  }
  bool operator()(Index batch, Index head, Index query, Index key) const {
    return call(object, batch, head, query, key);
  }
};

/// Step in host memory with a type-erased predicate.
template <class T>
using HostStep = Step<T, AnyPredicate, HostMemory>;

/// The same step with `predicate` as its predicate, which must outlive the result.
template <class T, class Predicate>
HostStep<T> with_any_predicate(Step<T, Predicate, HostMemory> const& step, AnyPredicate const& predicate) {
  return {step.tiles,           step.mask,          step.softmax_scale, step.logit_softcap, step.dropout,
          step.query_positions, step.key_positions, &predicate,         step.bias,          step.boolean_mask,
          step.query_segments,  step.key_segments,  step.progress};
}

}  // namespace annulus::cpu
