#pragma once
// Arguments of the CPU kernels: a step with a type-erased predicate, its operands and results.

#include "annulus/backend/step.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/function_ref.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {

/// Type-erased predicate (batch, head, query, key), so that kernels are compiled once for all predicate types.
using AnyPredicate = FunctionRef<bool(Index, Index, Index, Index)>;

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
