#pragma once
// Entry points of the CPU kernels. They are templates over the element type alone, and hold all code that takes long to
// compile.
//
// A program that links annulus::cpu, which defines ANNULUS_CPU_COMPILED, calls kernels that are compiled for several
// instruction sets and selected at run time. Otherwise each program compiles the kernels for the instruction set of its
// compiler flags.

#include "annulus/backend/cpu/any_predicate.hpp"
#include "annulus/backend/cpu/simd/target.hpp"
#include "annulus/backend/visible_keys.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_KERNELS {

/// Backend::fold: adds the step's keys and values to `state`, on `threads` threads (0: automatic, see CpuBackend).
template <class T>
void fold(HostStep<T> const& step, StepOperands<T, HostMemory> const& operands,
          RunningState<Accumulator<T>, HostMemory> const& state, StepDocuments const& documents, int threads);

/// Backend::add_gradients: adds the step's share to dq, dk, dv and, if given, dbias. `threads` as for fold().
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
