#pragma once
// Backend wrapper that notifies a test before each operation, with the bytes of allocations.

#include <functional>
#include <string_view>
#include <utility>

#include "annulus/backend/backend.hpp"

namespace annulus_test {

/// Wraps a backend, which must outlive it; models Backend without changing the behaviour.
template <class Inner>
class ObservedBackend {
 public:
  using memory_space = typename Inner::memory_space;
  using Buffer = typename Inner::Buffer;
  template <class T>
  using accumulator = typename Inner::template accumulator<T>;
  /// observe(name of the operation, bytes if it is "allocate" and else 0)
  using Observe = std::function<void(std::string_view, annulus::Index)>;

  ObservedBackend(Inner& inner, Observe observe) : inner_(&inner), observe_(std::move(observe)) {}

  annulus::Support supports(annulus::Problem const& problem) const { return std::as_const(*inner_).supports(problem); }

  annulus::QueueOf<memory_space> queue() requires(!annulus::works_at_once<memory_space>) { return inner_->queue(); }

  Buffer allocate(annulus::Index bytes) {
    observe_("allocate", bytes);
    return inner_->allocate(bytes);
  }

#define ANNULUS_OBSERVED(operation)                                \
  template <class... X>                                            \
  void operation(X const&... x) requires requires(Inner & inner) { \
    inner.operation(x...);                                         \
  }                                                                \
  {                                                                \
    observe_(#operation, 0);                                       \
    inner_->operation(x...);                                       \
  }
  ANNULUS_OBSERVED(copy)
  ANNULUS_OBSERVED(convert)
  ANNULUS_OBSERVED(add)
  ANNULUS_OBSERVED(clear)
  ANNULUS_OBSERVED(reset)
  ANNULUS_OBSERVED(fold)
  ANNULUS_OBSERVED(merge)
  ANNULUS_OBSERVED(normalise)
  ANNULUS_OBSERVED(row_delta)
  ANNULUS_OBSERVED(add_gradients)
  ANNULUS_OBSERVED(sink_gradients)
#undef ANNULUS_OBSERVED
  void synchronize() {
    observe_("synchronize", 0);
    inner_->synchronize();
  }

 private:
  Inner* inner_;
  Observe observe_;
};

}  // namespace annulus_test
