#pragma once
// The two calls into the kernels of the CPU backend. They are all that depends on the element type alone, and all that
// takes long to compile.
//
// A program that links annulus::cpu, which defines ANNULUS_CPU_COMPILED, calls kernels that are compiled for several
// instruction sets and chosen at run time. Else they are compiled where they are used, for the instruction set of the
// compiler's flags.

#include "annulus/backend/cpu/any_predicate.hpp"
#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_KERNELS {

/// Backend::fold. threads 0: as many as the process has cores to spare.
template <class T>
void fold(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
          RunningState<Accumulator<T>, HostMemory> const& state, StepDocuments const& documents, int threads);

/// Backend::add_gradients.
template <class T>
void add_gradients(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
                   BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward,
                   StepGradients<Accumulator<T>, HostMemory> const& gradients, StepDocuments const& documents,
                   int threads);

}  // namespace ANNULUS_CPU_KERNELS
}  // namespace annulus::cpu

#if !defined(ANNULUS_CPU_COMPILED)
#include "annulus/backend/cpu/kernels_definition.hpp"
#endif
