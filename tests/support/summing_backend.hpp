#pragma once
// CpuBackend that sums in memory before it writes results, also in a pass of one step.

#include <annulus/backend/cpu/cpu.hpp>

namespace annulus_test {

/// Steps add to sums alone: opened sums are cleared before, and results of closed sums computed afterwards.
struct SummingBackend : annulus::CpuBackend {
  template <class T, class Predicate>
  void fold(annulus::Step<T, Predicate, annulus::HostMemory> const& step,
            annulus::StepOperands<T, annulus::HostMemory> const& operands,
            annulus::RunningState<annulus::Accumulator<T>, annulus::HostMemory> const& state) {
    annulus::CpuBackend::fold(step, operands, state);
  }
  template <class T, class Predicate, class Backward, class A>
  void add_gradients(annulus::Step<T, Predicate, annulus::HostMemory> const& step,
                     annulus::StepOperands<T, annulus::HostMemory> const& operands, Backward const& backward,
                     annulus::StepGradients<A, annulus::HostMemory> const& gradients) {
    annulus::CpuBackend::add_gradients(step, operands, backward, gradients);
  }
};
static_assert(annulus::Backend<SummingBackend> && !annulus::ClosingBackend<SummingBackend>);

}  // namespace annulus_test
