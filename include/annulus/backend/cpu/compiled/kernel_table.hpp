#pragma once
// Table of function pointers to the kernels of one element type at one instruction-set level.

#include "annulus/backend/cpu/any_predicate.hpp"
#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {

/// Exported by each kernel object file of annulus::cpu: cpu::fold, cpu::add_gradients and cpu::peak_loop of type T.
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
