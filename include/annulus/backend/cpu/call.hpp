#pragma once
// Arguments of the CPU kernels: a step with a type-erased predicate, its operands and results.

#include "annulus/backend/step.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/scalar.hpp"

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

/// Backend::fold: adds the step's keys and values to `state`, on `threads` threads (0: automatic, see CpuBackend).
template <class T>
struct FoldCall {
  HostStep<T> const& step;
  StepOperands<T, HostMemory> const& operands;
  RunningState<Accumulator<T>, HostMemory> const& state;
  StepDocuments const& documents;
  int threads;
};

/// Backend::add_gradients: adds the step's share to dq, dk, dv and, if given, dbias. `threads` as in FoldCall.
template <class T>
struct GradientCall {
  HostStep<T> const& step;
  StepOperands<T, HostMemory> const& operands;
  BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward;
  StepGradients<Accumulator<T>, HostMemory> const& gradients;
  StepDocuments const& documents;
  int threads;
};

}  // namespace annulus::cpu
