#pragma once
// The fast backend for CPUs: fused, blocked kernels on the vectors of the target that the compiler's flags allow.

#include <algorithm>
#include <cstddef>

#include "annulus/backend/backend.hpp"
#include "annulus/backend/cpu/kernels.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/backend/visible_keys.hpp"

namespace annulus {
namespace cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Computes on threads that the whole process shares; sums in float, in double for double operands. Results are the same
/// bits for every number of threads.
struct CpuBackend {
  /// Threads that work on one call. 0: the cores of the machine, divided by the calls that are under way.
  int threads = 0;
  /// Memory that is kept from call to call.
  StepDocuments documents{};

  using memory_space = HostMemory;
  using Buffer = HostBuffer;
  template <class T>
  using accumulator = Accumulator<T>;

  Buffer allocate(Index bytes) { return HostBuffer(bytes); }
  /// Everything is supported.
  Support supports(Problem const&) const { return Support::yes(); }
  /// Every operation is done when it returns.
  void synchronize() {}

  template <class T, std::size_t N>
  void copy(TensorView<T const, N> from, TensorView<T, N> to) {
    HostOperations().copy(from, to);
  }
  template <class A, class T, std::size_t N>
  void convert(TensorView<A const, N> from, TensorView<T, N> to) {
    HostOperations().convert(from, to);
  }
  template <class A, std::size_t N>
  void add(TensorView<A, N> into, TensorView<A const, N> from) {
    HostOperations().add(into, from);
  }
  template <class A, std::size_t N>
  void clear(TensorView<A, N> view) {
    HostOperations().clear(view);
  }
  template <class A>
  void reset(RunningState<A, HostMemory> state) {
    HostOperations().reset(state);
  }
  template <class A>
  void merge(RunningState<A, HostMemory> into, RunningState<A, HostMemory> from) {
    HostOperations().merge(into, from);
  }
  template <class A, class L, class T>
  void normalise(RunningState<A, HostMemory> state, TensorView<L const, 2> sinks, TensorView<T, 4> output, TensorView<L, 3> lse) {
    HostOperations().normalise(state, sinks, output, lse);
  }
  template <class T, class A>
  void row_delta(TensorView<T const, 4> dout, TensorView<T const, 4> output, TensorView<A, 3> delta) {
    HostOperations().row_delta(dout, output, delta);
  }
  template <class L, class A>
  void sink_gradients(TensorView<L const, 3> lse, TensorView<A const, 3> delta, TensorView<L const, 2> sinks, TensorView<A, 2> dsinks) {
    HostOperations().sink_gradients(lse, delta, sinks, dsinks);
  }

  template <class T, class Predicate>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<Accumulator<T>, HostMemory> state) {
    documents.assign(step);
    AnyPredicate const predicate = AnyPredicate::of(*step.predicate);
    HostStep<T> const any_step = with_any_predicate(step, predicate);
    cpu::fold<T>(any_step, operands, state, documents, threads);
  }

  template <class T, class Predicate>
  void add_gradients(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                     BackwardOperands<T, Accumulator<T>, Accumulator<T>, HostMemory> const& backward,
                     StepGradients<Accumulator<T>, HostMemory> gradients) {
    documents.assign(step);
    AnyPredicate const predicate = AnyPredicate::of(*step.predicate);
    HostStep<T> const any_step = with_any_predicate(step, predicate);
    cpu::add_gradients<T>(any_step, operands, backward, gradients, documents, threads);
  }
};

}  // namespace ANNULUS_CPU_TARGET
}  // namespace cpu

using cpu::CpuBackend;
static_assert(Backend<CpuBackend>);

}  // namespace annulus
