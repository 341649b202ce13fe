#pragma once
// Steps that open and close sums, on every backend: fold() and add_gradients() call the forms that do so, or else clear
// the opened sums, call the forms that add alone, and compute the results of the closed sums.

#include <concepts>
#include <span>

#include "annulus/backend/backend.hpp"

namespace annulus::detail {

/// Makes the running state empty if it is opened.
template <class B, class A, class Space>
void open_sums(B& backend, Sums opens, RunningState<A, Space> const& state) {
  if (has(opens, Sums::queries)) backend.reset(state);
}

/// Computes the results of the running state if it is closed.
template <class B, class A, class T, class L, class Space>
void close_sums(B& backend, Sums closes, RunningState<A, Space> const& state,
                ForwardResults<T, L, Space> const& results) {
  if (has(closes, Sums::queries))
    backend.normalise(state, results.sinks, results.output, results.lse, results.lse_remainder);
}

/// Sets the opened sums of gradients to 0.
template <class B, class A, class Space>
void open_sums(B& backend, Sums opens, StepGradients<A, Space> const& gradients) {
  if (has(opens, Sums::queries)) backend.clear(gradients.dq);
  if (has(opens, Sums::keys)) {
    backend.clear(gradients.dk);
    backend.clear(gradients.dv);
  }
  if (has(opens, Sums::pairs) && gradients.dbias.data()) backend.clear(gradients.dbias);
}

/// Converts a sum to its result, which may be the same memory.
template <class B, class A, class G, class Space>
void convert_sum(B& backend, TensorView<A, 4, Space> const& sum, TensorView<G, 4, Space> const& result) {
  if constexpr (std::same_as<A, G>)
    if (sum.data() == result.data()) return;
  backend.convert(TensorView<A const, 4, Space>(sum), result);
}

/// Converts the closed sums of queries and keys to their results.
template <class B, class A, class G, class Space>
void close_sums(B& backend, Sums closes, StepGradients<A, Space> const& gradients,
                GradientResults<G, Space> const& results) {
  if (has(closes, Sums::queries)) convert_sum(backend, gradients.dq, results.dq);
  if (has(closes, Sums::keys)) {
    convert_sum(backend, gradients.dk, results.dk);
    convert_sum(backend, gradients.dv, results.dv);
  }
}

/// Sets the elements of dbias for the keys of a step to 0.
template <class B, class G, class Space>
void clear_pairs(B& backend, std::span<Index const> key_positions, TensorView<G, 4, Space> const& dbias) {
  for (Index const key : key_positions) backend.clear(dbias.slice(3, key, 1));
}

/// Adds the keys of a step to the running state, which the step may open and close; see Step. `results` is read only if
/// the step closes the state.
template <class B, class T, class Predicate, class A, class Space, class L = Accumulator<T>>
void fold(B& backend, Step<T, Predicate, Space> const& step, StepOperands<T, Space> const& operands,
          RunningState<A, Space> const& state, ForwardResults<T, L, Space> const& results = {}) {
  if constexpr (ClosingBackend<B>) {
    backend.fold(step, operands, state, results);
  } else {
    open_sums(backend, step.opens, state);
    backend.fold(step.opening_and_closing(Sums::none, Sums::none), operands, state);
    close_sums(backend, step.closes, state, results);
  }
}

/// Adds the gradients of a step to their sums, which the step may open and close; see Step. `results` is read only for
/// sums that the step closes; Sums::pairs only if B is a ClosingBackend.
template <class B, class T, class Predicate, class L, class A, class Space, class G = T>
void add_gradients(B& backend, Step<T, Predicate, Space> const& step, StepOperands<T, Space> const& operands,
                   BackwardOperands<T, L, A, Space> const& backward, StepGradients<A, Space> const& gradients,
                   GradientResults<G, Space> const& results = {}) {
  if constexpr (ClosingBackend<B>) {
    backend.add_gradients(step, operands, backward, gradients, results);
  } else {
    open_sums(backend, step.opens, gradients);
    backend.add_gradients(step.opening_and_closing(Sums::none, Sums::none), operands, backward, gradients);
    close_sums(backend, step.closes, gradients, results);
  }
}

}  // namespace annulus::detail
