#pragma once
// Kernels of one element type at one instruction-set level, as function pointers.

#include "annulus/backend/cpu/any_predicate.hpp"
#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {

/// What an object file of annulus::cpu exports: cpu::fold, cpu::add_gradients and cpu::peak_loop of element type T.
template <class T>
struct KernelTable {
  using A = Accumulator<T>;

  void (*fold)(HostStep<T> const&, StepOperands<T, HostMemory> const&, RunningState<A, HostMemory> const&,
               StepDocuments const&, int threads);
  void (*add_gradients)(HostStep<T> const&, StepOperands<T, HostMemory> const&,
                        BackwardOperands<T, A, A, HostMemory> const&, StepGradients<A, HostMemory> const&,
                        StepDocuments const&, int threads);
  PeakLoop (*peak_loop)();
};

}  // namespace annulus::cpu
