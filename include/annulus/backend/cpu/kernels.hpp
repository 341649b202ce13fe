#pragma once
// The two calls into the kernels of the CPU backend. They are all that depends on the element type alone, and all that
// takes long to compile.
//
// By default they are compiled where they are used. A program with many translation units can compile them once instead:
// define ANNULUS_CPU_KERNELS_ELSEWHERE for all of them, and include annulus/backend/cpu/instantiate.hpp in one. All must
// then be compiled for the same instruction set.

#include "annulus/backend/cpu/any_predicate.hpp"
#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Backend::fold. threads 0: as many as the process has cores to spare.
template <class T>
void fold(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
          RunningState<Accumulator<T>, HostMemory> const& state, StepDocuments const& documents, int threads);

/// Backend::add_gradients.
template <class T>
void add_gradients(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
                   BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward,
                   StepGradients<Accumulator<T>, HostMemory> const& gradients, StepDocuments const& documents, int threads);

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu

#if !defined(ANNULUS_CPU_KERNELS_ELSEWHERE)
#include "annulus/backend/cpu/kernels_definition.hpp"
#endif
