#pragma once
// For one translation unit of a program that defines ANNULUS_CPU_KERNELS_ELSEWHERE: compiles the kernels of the CPU
// backend for all element types.

#include "annulus/backend/cpu/kernels_definition.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

#define ANNULUS_CPU_INSTANTIATE(T)                                                                                         \
  template void fold<T>(HostStep<T> const&, StepOperands<T, HostMemory> const&,                                            \
                        RunningState<Accumulator<T>, HostMemory> const&, StepDocuments const&, int);                       \
  template void add_gradients<T>(HostStep<T> const&, StepOperands<T, HostMemory> const&,                                   \
                                 BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const&,                   \
                                 StepGradients<Accumulator<T>, HostMemory> const&, StepDocuments const&, int);
ANNULUS_CPU_INSTANTIATE(float)
ANNULUS_CPU_INSTANTIATE(double)
ANNULUS_CPU_INSTANTIATE(Eigen::half)
ANNULUS_CPU_INSTANTIATE(Eigen::bfloat16)
#undef ANNULUS_CPU_INSTANTIATE

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
