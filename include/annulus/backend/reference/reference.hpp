#pragma once
// Reference backend: it defines the meaning of every option, in plain loops. Every other backend is tested against it.

#include <type_traits>

#include "annulus/backend/backend.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/backend/reference/backward.hpp"
#include "annulus/backend/reference/forward.hpp"

namespace annulus {

/// Backend that supports every problem. Wide: type of all sums; void: float, or double for double operands.
template <class Wide = void>
class BasicReferenceBackend : public HostOperations {
 public:
  template <class T>
  using accumulator = typename std::conditional_t<std::is_void_v<Wide>, std::type_identity<Accumulator<T>>,
                                                  std::type_identity<Wide>>::type;

  /// Always yes.
  Support supports(Problem const&) const { return Support::yes(); }

  template <class T, class Predicate, class A>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<A, HostMemory> state) {
    reference::fold(step, operands, state);
  }

  template <class T, class L, class Predicate, class A>
  void add_gradients(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
                     BackwardOperands<T, L, A, HostMemory> const& backward, StepGradients<A, HostMemory> gradients) {
    reference::add_gradients(step, operands, backward, gradients);
  }
};

using ReferenceBackend = BasicReferenceBackend<>;
/// All sums in double, for every operand type: exchanged gradients and states take twice the bytes.
using DoubleReferenceBackend = BasicReferenceBackend<double>;

static_assert(Backend<ReferenceBackend> && Backend<DoubleReferenceBackend>);

}  // namespace annulus
