#pragma once
// Backend concept: the device policy. A backend does all work on tensor memory and knows nothing of ranks.

#include <concepts>
#include <optional>
#include <string>
#include <type_traits>

#include "annulus/backend/step.hpp"
#include "annulus/core/scalar.hpp"

namespace annulus {

/// One pass of one rank, as Backend::supports sees it. The flags say which optional operands are given.
struct Problem {
  Pass pass = Pass::forward;               ///< of the call
  DataType data_type = DataType::float32;  ///< of q, k, v and dout
  AttentionShape shape{};                  ///< extents that are equal on all ranks
  int ranks = 1;                           ///< of the ring
  Index local_queries = 0;                 ///< query rows of this rank
  Index local_keys = 0;                    ///< key rows of this rank
  AttentionRules rules{};                  ///< with softmax_scale set
  bool bias = false;                       ///< an additive bias
  bool bias_gradient = false;              ///< dbias is computed
  bool boolean_mask = false;               ///< a boolean mask
  bool predicate = false;                  ///< a predicate other than EveryPair
  bool document_ids = false;               ///< document ids
  Index sinks = 0;                         ///< sink logits per query head
  Index joint_keys = 0;                    ///< keys that all ranks hold

  bool operator==(Problem const&) const = default;
};

/// Answer of a backend: supported, or the reason why not.
class Support {
 public:
  /// The problem is supported.
  static Support yes() { return {}; }
  /// The problem is not supported, for this reason, which becomes the message of an UnsupportedError.
  static Support no(std::string reason) {
    Support support;
    support.reason_ = std::move(reason);
    return support;
  }

  explicit operator bool() const { return !reason_; }  ///< true if supported
  /// Empty if supported.
  std::string reason() const { return reason_.value_or(""); }

 private:
  std::optional<std::string> reason_;
};

namespace detail {

/// B has the forms of fold() and add_gradients() that only add to sums.
template <class B, class S, class A>
concept AddingIn = requires(B& backend, Step<float, EveryPair, S> step, StepOperands<float, S> operands,
                            RunningState<A, S> state, BackwardOperands<float, float, A, S> backward,
                            StepGradients<A, S> gradients) {
  backend.fold(step, operands, state);
  backend.add_gradients(step, operands, backward, gradients);
};

/// B has the forms of fold() and add_gradients() that open and close sums too.
template <class B, class S, class A>
concept ClosingIn = requires(B& backend, Step<float, EveryPair, S> step, StepOperands<float, S> operands,
                             RunningState<A, S> state, ForwardResults<float, float, S> output,
                             BackwardOperands<float, float, A, S> backward, StepGradients<A, S> gradients,
                             GradientResults<float, S> results) {
  backend.fold(step, operands, state, output);
  backend.add_gradients(step, operands, backward, gradients, results);
};

/// B has all operations but those on steps.
template <class B, class S, class A>
concept RowOperationsIn = requires(B& backend, B const& observed, Problem const& problem, RunningState<A, S> state,
                                   TensorView<float, 4, S> tensor, TensorView<float const, 4, S> constant,
                                   TensorView<A, 4, S> sum, TensorView<A const, 4, S> sums, TensorView<float, 3, S> lse,
                                   TensorView<A, 3, S> delta, TensorView<float const, 3, S> known_lse,
                                   TensorView<A const, 3, S> known_delta, TensorView<float const, 2, S> sinks,
                                   TensorView<A, 2, S> dsinks) {
  typename B::Buffer;
  { backend.allocate(Index{64}) } -> std::same_as<typename B::Buffer>;
  { observed.supports(problem) } -> std::same_as<Support>;
  backend.copy(constant, tensor);
  backend.convert(sums, tensor);
  backend.add(sum, sums);
  backend.clear(sum);
  backend.reset(state);
  backend.merge(state, state);
  backend.normalise(state, sinks, tensor, lse, lse);
  backend.row_delta(constant, constant, delta);
  backend.sink_gradients(known_lse, known_lse, known_delta, sinks, dsinks);
  backend.synchronize();
};

/// B has the queue of its memory space, unless that is empty.
template <class B, class S>
concept QueuesIn = WorkQueue<QueueOf<S>> &&(works_at_once<S> || requires(B & backend) {
  { backend.queue() } -> std::same_as<QueueOf<S>>;
});

/// The requirements on backend B with memory space S and accumulator A of float.
template <class B, class S, class A>
concept BackendIn = QueuesIn<B, S> && RowOperationsIn<B, S, A> &&(AddingIn<B, S, A> || ClosingIn<B, S, A>);

}  // namespace detail

/// Satisfied by B where, for every element type T that it supports, with A = B::accumulator<T> and views in its space:
///  1. allocate(bytes) returns a movable Buffer with data() and size(), aligned to 64 bytes, contents unspecified;
///  2. supports(problem) is called before any rows are sent; a problem that it rejects is never started;
///  3. all calls below are executed in the order in which they are made, but may return before they are done: they are
///     work on queue() (10). Elements of views, and the predicate of a step, stay valid until that is done; the step
///     itself, its tiles and its positions are read before the call returns. synchronize() returns when all work is
///     done; nothing else waits. The library waits once in a call, in the communicator's finish(queue), and
///     synchronizes when an exception unwinds a call;
///  4. copy(from, to), convert(from, to), add(into, from), clear(view) work element by element on equal extents;
///  5. reset(state) makes every row empty; fold(step, operands, state) adds the keys of a step to the rows they are
///     visible to; merge(into, from) joins two states of the same rows; normalise(state, sinks, output, lse,
///     lse_remainder) computes the results (sinks: sink logits [query_heads, n], without data: none); all follow
///     numerics/softmax.hpp, also for rows that have seen no key. lse_remainder is the rounding error of lse, 0 where
///     lse is not finite; without data it is not written. output may be the memory of the state's accumulator;
///  6. row_delta(dout, output, delta): delta = sum over dim of dout * output;
///  7. add_gradients(step, operands, backward, gradients) adds the share of a step to dq, dk, dv and, if given, dbias.
///     Probabilities are exp((logit - lse) - lse_remainder), where lse_remainder without data is 0;
///  8. sink_gradients(lse, lse_remainder, delta, sinks, dsinks) writes this rank's share of the gradient of the sink
///     logits, with the same probabilities;
///  9. optional, see ClosingBackend: fold(step, operands, state, results) and add_gradients(step, operands, backward,
///     gradients, results) instead of the forms above. Steps without Step::opens and Step::closes are all that the
///     forms above get: backend/open_close.hpp clears and converts the sums of such a backend;
///  10. in a memory space whose queue is not empty, queue() returns the queue that the calls above put their work on,
///      always the same one. Exchanges begin and end at places of it. In other spaces, such as HostMemory, a call
///      returns when its work is done, and queue() is not required.
///
/// Extents: backend/step.hpp. State and gradient views have unit stride along dim; operands may have any strides.
/// Results are bit-identical from run to run.
template <class B>
concept Backend = detail::BackendIn<B, typename B::memory_space, typename B::template accumulator<float>>;

/// A backend whose steps open and close sums themselves. Its fold(step, operands, state, results) and
/// add_gradients(step, operands, backward, gradients, results), with ForwardResults and GradientResults, do what
/// Step::opens and Step::closes say, Sums::pairs included, and read the results of closed sums alone. A class that
/// derives from such a backend and hides one of them with the form that adds alone is none.
template <class B>
concept ClosingBackend =
    Backend<B> && detail::ClosingIn<B, typename B::memory_space, typename B::template accumulator<float>>;

namespace detail {

/// The queue that the backend puts its work on.
template <class B>
QueueOf<typename B::memory_space> queue_of(B& backend) {
  if constexpr (works_at_once<typename B::memory_space>)
    return {};
  else
    return backend.queue();
}

}  // namespace detail

/// Type in which backend B sums for operands of type T.
template <class B, class T>
using AccumulatorOf = typename B::template accumulator<T>;

}  // namespace annulus
