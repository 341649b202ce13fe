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

  template <class... X>
  void copy(X const&... x) {
    observe_("copy", 0);
    inner_->copy(x...);
  }
  template <class... X>
  void convert(X const&... x) {
    observe_("convert", 0);
    inner_->convert(x...);
  }
  template <class... X>
  void add(X const&... x) {
    observe_("add", 0);
    inner_->add(x...);
  }
  template <class... X>
  void clear(X const&... x) {
    observe_("clear", 0);
    inner_->clear(x...);
  }
  template <class... X>
  void reset(X const&... x) {
    observe_("reset", 0);
    inner_->reset(x...);
  }
  template <class... X>
  void fold(X const&... x) requires requires(Inner& inner) {
    inner.fold(x...);
  }
  {
    observe_("fold", 0);
    inner_->fold(x...);
  }
  template <class... X>
  void merge(X const&... x) {
    observe_("merge", 0);
    inner_->merge(x...);
  }
  template <class... X>
  void normalise(X const&... x) {
    observe_("normalise", 0);
    inner_->normalise(x...);
  }
  template <class... X>
  void row_delta(X const&... x) {
    observe_("row_delta", 0);
    inner_->row_delta(x...);
  }
  template <class... X>
  void add_gradients(X const&... x) requires requires(Inner& inner) {
    inner.add_gradients(x...);
  }
  {
    observe_("add_gradients", 0);
    inner_->add_gradients(x...);
  }
  template <class... X>
  void sink_gradients(X const&... x) {
    observe_("sink_gradients", 0);
    inner_->sink_gradients(x...);
  }
  void synchronize() {
    observe_("synchronize", 0);
    inner_->synchronize();
  }

 private:
  Inner* inner_;
  Observe observe_;
};

}  // namespace annulus_test
