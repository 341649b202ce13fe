#pragma once
// Asynchronous backend, as of a device: its calls return before the work is done, and it has its own memory space.

#include <atomic>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/backend/reference/reference.hpp"
#include "support/deferred_queue.hpp"
#include "support/foreign_tensor.hpp"

namespace annulus_test {

/// Error of a device whose work failed.
class DeviceFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class ForeignBuffer {
 public:
  ForeignBuffer() = default;
  explicit ForeignBuffer(annulus::Index bytes) : memory_(static_cast<std::size_t>(bytes)) {}

  std::byte* data() const { return memory_.data(); }
  annulus::Index size() const { return static_cast<annulus::Index>(memory_.size()); }

 private:
  ForeignAllocation memory_;
};

struct ForeignBackendOptions {
  DeferralOptions deferral{};
  int failing_call = -1;  ///< the work of this call, counted from 0, throws DeviceFailure; -1: none does
};

/// Models Backend by queueing every call for Inner, a backend of host memory. Steps, their tiles and positions are
/// copied when the call is made; views and the predicate are read when the work is executed. Views of host memory are
/// errors, which synchronize() throws like any failure.
template <class Inner = annulus::ReferenceBackend>
class ForeignBackend {
  using Index = annulus::Index;
  template <class T, class Predicate>
  using Step = annulus::Step<T, Predicate, ForeignMemory>;
  template <class T>
  using StepOperands = annulus::StepOperands<T, ForeignMemory>;
  template <class A>
  using RunningState = annulus::RunningState<A, ForeignMemory>;

 public:
  using memory_space = ForeignMemory;
  using Buffer = ForeignBuffer;
  template <class T>
  using accumulator = typename Inner::template accumulator<T>;

  explicit ForeignBackend(ForeignBackendOptions const& options = {}) : options_(options), queue_(options.deferral) {}

  Buffer allocate(Index bytes) { return Buffer(bytes); }
  annulus::Support supports(annulus::Problem const& problem) const { return inner_.supports(problem); }
  void synchronize() { queue_.drain(); }

  /// Number of calls whose work is not done yet.
  std::size_t pending() const { return queue_.pending(); }
  /// Number of calls that violated the contract, including those whose exception was discarded.
  int misuses() const { return misuses_; }

  template <class T, std::size_t N>
  void copy(ForeignView<T const, N> from, ForeignView<T, N> to) {
    enqueue(
        "copy", [=, this] { inner_.copy(host(from), host(to)); }, from, to);
  }

  template <class A, class T, std::size_t N>
  void convert(ForeignView<A const, N> from, ForeignView<T, N> to) {
    enqueue(
        "convert", [=, this] { inner_.convert(host(from), host(to)); }, from, to);
  }

  template <class A, std::size_t N>
  void add(ForeignView<A, N> into, ForeignView<A const, N> from) {
    enqueue(
        "add", [=, this] { inner_.add(host(into), host(from)); }, into, from);
  }

  template <class A, std::size_t N>
  void clear(ForeignView<A, N> view) {
    enqueue(
        "clear", [=, this] { inner_.clear(host(view)); }, view);
  }

  template <class A>
  void reset(RunningState<A> state) {
    enqueue(
        "reset", [=, this] { inner_.reset(host(state)); }, state.accumulator, state.maximum, state.sum);
  }

  template <class T, class Predicate, class A>
  void fold(Step<T, Predicate> const& step, StepOperands<T> const& operands, RunningState<A> state) {
    enqueue_step(
        "fold", step,
        [=, this](Step<T, Predicate> const& copied) { inner_.fold(host(copied), host(operands), host(state)); },
        operands.q, operands.k, operands.v, state.accumulator, state.maximum, state.sum);
  }

  template <class A>
  void merge(RunningState<A> into, RunningState<A> from) {
    enqueue(
        "merge", [=, this] { inner_.merge(host(into), host(from)); }, into.accumulator, into.maximum, into.sum,
        from.accumulator, from.maximum, from.sum);
  }

  template <class A, class L, class T>
  void normalise(RunningState<A> state, ForeignView<L const, 2> sinks, ForeignView<T, 4> output, ForeignView<L, 3> lse,
                 ForeignView<L, 3> lse_remainder) {
    enqueue(
        "normalise",
        [=, this] { inner_.normalise(host(state), host(sinks), host(output), host(lse), host(lse_remainder)); },
        state.accumulator, state.maximum, state.sum, sinks, output, lse, lse_remainder);
  }

  template <class T, class A>
  void row_delta(ForeignView<T const, 4> dout, ForeignView<T const, 4> output, ForeignView<A, 3> delta) {
    enqueue(
        "row_delta", [=, this] { inner_.row_delta(host(dout), host(output), host(delta)); }, dout, output, delta);
  }

  template <class T, class L, class Predicate, class A>
  void add_gradients(Step<T, Predicate> const& step, StepOperands<T> const& operands,
                     annulus::BackwardOperands<T, L, A, ForeignMemory> const& backward,
                     annulus::StepGradients<A, ForeignMemory> gradients) {
    enqueue_step(
        "add_gradients", step,
        [=, this](Step<T, Predicate> const& copied) {
          inner_.add_gradients(host(copied), host(operands), host(backward), host(gradients));
        },
        operands.q, operands.k, operands.v, backward.dout, backward.lse, backward.delta, backward.lse_remainder,
        gradients.dq, gradients.dk, gradients.dv, gradients.dbias);
  }

  template <class L, class A>
  void sink_gradients(ForeignView<L const, 3> lse, ForeignView<L const, 3> lse_remainder, ForeignView<A const, 3> delta,
                      ForeignView<L const, 2> sinks, ForeignView<A, 2> dsinks) {
    enqueue(
        "sink_gradients",
        [=, this] { inner_.sink_gradients(host(lse), host(lse_remainder), host(delta), host(sinks), host(dsinks)); },
        lse, lse_remainder, delta, sinks, dsinks);
  }

 private:
  template <class InSpace>
  static auto host(InSpace const& foreign) {
    return foreign.template in_space<annulus::HostMemory>();
  }

  /// `work` captures views and spans by value; the views are checked immediately before it is executed.
  template <class Work, class... Views>
  void enqueue(char const* name, Work work, Views... views) {
    bool const fails = calls_++ == options_.failing_call;
    queue_.push([=, this] {
      try {
        (require_foreign(views, name), ...);
        work();
      } catch (std::logic_error const&) {
        ++misuses_;
        throw;
      }
      if (fails) throw DeviceFailure(std::string("the device failed in ") + name);
    });
  }

  /// Calls work(step) with a copy of the step and of what its spans refer to.
  template <class T, class Predicate, class Work, class... Views>
  void enqueue_step(char const* name, Step<T, Predicate> step, Work work, Views... views) {
    enqueue(
        name,
        [step, work, tiles = copy_of(step.tiles), queries = copy_of(step.query_positions),
         keys = copy_of(step.key_positions)] {
          Step<T, Predicate> copied = step;
          copied.tiles = tiles;
          copied.query_positions = queries;
          copied.key_positions = keys;
          work(copied);
        },
        views..., step.bias, step.boolean_mask, step.query_documents, step.key_documents);
  }

  template <class T>
  static std::vector<std::remove_const_t<T>> copy_of(std::span<T> values) {
    return {values.begin(), values.end()};
  }

  ForeignBackendOptions options_;
  int calls_ = 0;
  std::atomic<int> misuses_ = 0;
  Inner inner_;
  DeferredQueue queue_;  // last: destroyed, and all work ended, before the members that the work uses
};

static_assert(annulus::Backend<ForeignBackend<>>);

}  // namespace annulus_test
