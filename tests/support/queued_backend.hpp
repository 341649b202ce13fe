#pragma once
// Asynchronous backend, as of a device: its calls put work on a queue, and return before it is done.

#include <atomic>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/backend/backend.hpp"
#include "support/space_tensor.hpp"

namespace annulus_test {

/// Error of a device whose work failed.
class DeviceFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Models Backend by queueing every call for Inner, a backend of host memory. Steps, their tiles and positions are
/// copied when the call is made; views and the predicate are read when the work is executed. Views outside the place of
/// the device are errors, which synchronize() throws like any failure. `Device` has
///  * Place, see at_rest_in, and the type Buffer;
///  * queue(), and push(piece), which puts a piece of work on it;
///  * synchronize(), which throws the exception of the first piece that failed; later pieces were skipped.
template <class Inner, class Device>
class QueuedBackend {
  using Index = annulus::Index;
  using Place = typename Device::Place;

 public:
  using memory_space = typename Place::memory_space;

 private:
  template <class T, std::size_t N>
  using View = annulus::TensorView<T, N, memory_space>;
  template <class T, class Predicate>
  using Step = annulus::Step<T, Predicate, memory_space>;
  template <class T>
  using StepOperands = annulus::StepOperands<T, memory_space>;
  template <class A>
  using RunningState = annulus::RunningState<A, memory_space>;

 public:
  using Buffer = typename Device::Buffer;
  template <class T>
  using accumulator = typename Inner::template accumulator<T>;

  /// failing_call: the work of this call, counted from 0, throws DeviceFailure; -1: none does.
  template <class... Arguments>
  explicit QueuedBackend(int failing_call, Arguments&&... of_the_device)
      : failing_call_(failing_call), device_(std::forward<Arguments>(of_the_device)...) {}

  Buffer allocate(Index bytes) { return Buffer(bytes); }
  annulus::Support supports(annulus::Problem const& problem) const { return inner_.supports(problem); }
  auto queue() { return device_.queue(); }
  void synchronize() { device_.synchronize(); }

  /// Number of calls that violated the contract, including those whose exception was discarded.
  int misuses() const { return misuses_; }

  template <class T, std::size_t N>
  void copy(View<T const, N> from, View<T, N> to) {
    enqueue(
        "copy", [=, this] { inner_.copy(host(from), host(to)); }, from, to);
  }

  template <class A, class T, std::size_t N>
  void convert(View<A const, N> from, View<T, N> to) {
    enqueue(
        "convert", [=, this] { inner_.convert(host(from), host(to)); }, from, to);
  }

  template <class A, std::size_t N>
  void add(View<A, N> into, View<A const, N> from) {
    enqueue(
        "add", [=, this] { inner_.add(host(into), host(from)); }, into, from);
  }

  template <class A, std::size_t N>
  void clear(View<A, N> view) {
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
  void normalise(RunningState<A> state, View<L const, 2> sinks, View<T, 4> output, View<L, 3> lse,
                 View<L, 3> lse_remainder) {
    enqueue(
        "normalise",
        [=, this] { inner_.normalise(host(state), host(sinks), host(output), host(lse), host(lse_remainder)); },
        state.accumulator, state.maximum, state.sum, sinks, output, lse, lse_remainder);
  }

  template <class T, class A>
  void row_delta(View<T const, 4> dout, View<T const, 4> output, View<A, 3> delta) {
    enqueue(
        "row_delta", [=, this] { inner_.row_delta(host(dout), host(output), host(delta)); }, dout, output, delta);
  }

  template <class T, class L, class Predicate, class A>
  void add_gradients(Step<T, Predicate> const& step, StepOperands<T> const& operands,
                     annulus::BackwardOperands<T, L, A, memory_space> const& backward,
                     annulus::StepGradients<A, memory_space> gradients) {
    enqueue_step(
        "add_gradients", step,
        [=, this](Step<T, Predicate> const& copied) {
          inner_.add_gradients(host(copied), host(operands), host(backward), host(gradients));
        },
        operands.q, operands.k, operands.v, backward.dout, backward.lse, backward.delta, backward.lse_remainder,
        gradients.dq, gradients.dk, gradients.dv, gradients.dbias);
  }

  template <class L, class A>
  void sink_gradients(View<L const, 3> lse, View<L const, 3> lse_remainder, View<A const, 3> delta,
                      View<L const, 2> sinks, View<A, 2> dsinks) {
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
    bool const fails = calls_++ == failing_call_;
    device_.push([=, this] {
      try {
        (Place::require(views, name), ...);
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

  int failing_call_;
  int calls_ = 0;
  std::atomic<int> misuses_ = 0;
  Inner inner_;

 protected:
  Device device_;  // last: destroyed, and all work ended, before the members that the work uses
};

}  // namespace annulus_test
