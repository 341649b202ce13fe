#pragma once
// Definitions of the entry points that kernels.hpp declares.

#include "annulus/backend/cpu/backward.hpp"
#include "annulus/backend/cpu/forward.hpp"
#include "annulus/backend/cpu/kernels.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_KERNELS {

template <class T>
void fold(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
          RunningState<Accumulator<T>, HostMemory> const& state, StepDocuments const& documents, int threads) {
  ForwardFold<T>(step, operands, state, documents, threads).run();
}

template <class T>
void add_gradients(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
                   BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward,
                   StepGradients<Accumulator<T>, HostMemory> const& gradients, StepDocuments const& documents,
                   int threads) {
  BackwardSum<T>(step, operands, backward, gradients, documents, threads).run();
}

}  // namespace ANNULUS_CPU_KERNELS
}  // namespace annulus::cpu
