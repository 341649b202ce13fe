#pragma once
// The reference backend: the meaning of every option, in loops that can be read. Every other backend is tested
// against it.

#include <type_traits>

#include "annulus/backend/backend.hpp"
#include "annulus/backend/host_operations.hpp"
#include "annulus/backend/reference/backward.hpp"
#include "annulus/backend/reference/forward.hpp"

namespace annulus {

/// Wide: type in which sums are kept, instead of float (double for double operands).
template <class Wide = void>
class BasicReferenceBackend : public HostOperations {
 public:
  template <class T>
  using accumulator = typename std::conditional_t<std::is_void_v<Wide>, std::type_identity<Accumulator<T>>,
                                                  std::type_identity<Wide>>::type;

  /// Everything is supported.
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
/// All sums in double, whatever the operands: twice the bytes for gradients and states in flight.
using DoubleReferenceBackend = BasicReferenceBackend<double>;

static_assert(Backend<ReferenceBackend> && Backend<DoubleReferenceBackend>);

}  // namespace annulus
