#pragma once
// RingAttention over SelfRing and SimulatedRing with CpuBackend, compiled in annulus::cpu. A program that links it and
// includes this header, as annulus.hpp does, compiles only what depends on its tensor types; calls with other
// communicators, backends or predicates are compiled by the program.

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"

// The instances over a ring; `linkage` is extern here and empty in the library.
#define ANNULUS_CPU_PASSES(linkage, Ring)                               \
  ANNULUS_CPU_FORWARD(linkage, Ring, float)                             \
  ANNULUS_CPU_FORWARD(linkage, Ring, double)                            \
  ANNULUS_CPU_FORWARD(linkage, Ring, Eigen::half)                       \
  ANNULUS_CPU_FORWARD(linkage, Ring, Eigen::bfloat16)                   \
  ANNULUS_CPU_BACKWARD(linkage, Ring, float, float)                     \
  ANNULUS_CPU_BACKWARD(linkage, Ring, double, double)                   \
  ANNULUS_CPU_BACKWARD(linkage, Ring, Eigen::half, Eigen::half)         \
  ANNULUS_CPU_BACKWARD(linkage, Ring, Eigen::half, float)               \
  ANNULUS_CPU_BACKWARD(linkage, Ring, Eigen::bfloat16, Eigen::bfloat16) \
  ANNULUS_CPU_BACKWARD(linkage, Ring, Eigen::bfloat16, float)
#define ANNULUS_CPU_FORWARD(linkage, Ring, T)                            \
  linkage template void RingAttention<Ring, CpuBackend>::run_forward<T>( \
      Call, StepOperands<T, HostMemory> const&, Operands<T, HostMemory>, \
      detail::FunctionRef<ForwardViews<T>(AttentionShape const&, Index)>);
#define ANNULUS_CPU_BACKWARD(linkage, Ring, T, G)                                                 \
  linkage template void RingAttention<Ring, CpuBackend>::run_backward<T, G>(                      \
      Call, StepOperands<T, HostMemory> const&, BackwardViews<T> const&, Operands<T, HostMemory>, \
      detail::FunctionRef<GradientViews<G, HostMemory>()>);

#if defined(ANNULUS_CPU_COMPILED)
namespace annulus {
ANNULUS_CPU_PASSES(extern, SelfRing)
ANNULUS_CPU_PASSES(extern, SimulatedRing)
}  // namespace annulus
#endif
