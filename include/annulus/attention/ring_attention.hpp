#pragma once
// RingAttention: exact attention over a sequence that is spread on the ranks of a ring.

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/attention/agreement.hpp"
#include "annulus/attention/options.hpp"
#include "annulus/attention/results.hpp"
#include "annulus/attention/validate.hpp"
#include "annulus/ring/backward_pass.hpp"
#include "annulus/ring/forward_pass.hpp"
#include "annulus/tensor/eigen.hpp"

namespace annulus {

namespace detail {

template <class Space, class X>
constexpr bool lives_in = true;
template <class Space, TensorLike X>
constexpr bool lives_in<Space, X> = std::same_as<SpaceOf<X>, Space>;
template <class X>
constexpr bool has_scalar = true;
template <TensorLike X>
constexpr bool has_scalar<X> = Scalar<ScalarOf<X>>;
template <class Q, class X>
constexpr bool same_kind = true;
template <TensorLike Q, TensorLike X>
constexpr bool same_kind<Q, X> = std::same_as<ScalarOf<Q>, ScalarOf<X>> && rank_of<X> == 4;

}  // namespace detail

/// Fails to compile, with a sentence, unless q, k, v, output and dout are tensors that go together in memory `Space`.
template <class Space, class Q, class... X>
struct RequireOperands {
  static_assert((RequireTensor<Q>::value && ... && RequireTensor<X>::value));
  static_assert((detail::has_scalar<Q> && ... && detail::has_scalar<X>),
                "annulus: operands have elements of float, double, Eigen::half or Eigen::bfloat16");
  static_assert((detail::same_kind<Q, Q> && ... && detail::same_kind<Q, X>),
                "annulus: q, k, v, output and dout have four axes and the same element type");
  static_assert((detail::lives_in<Space, Q> && ... && detail::lives_in<Space, X>),
                "annulus: an operand lives in another memory space than the communicator and the backend");
  static constexpr bool value = true;
};

/// Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", arXiv 2310.01889.
///
/// Every rank of the ring makes one, with equal options, and calls the same passes in the same order. The first call
/// fixes the shapes; buffers and plans are kept, so that a call that is made like the one before it allocates nothing but
/// the tensors it returns (the *_into calls: nothing). One thread at a time calls it. Communicator and backend must outlive it; `predicate(batch, head,
/// query, key)` on global positions (query counted from query_offset) restricts the mask further.
///
/// Shapes, in attention order (other orders: bhsd(x), bhds(x)); extents other than the lengths are equal on all ranks:
///   q [batch, local_queries, query_heads, head_dim]   this rank's shard, in the sharding's order
///   k [batch, local_keys, kv_heads, head_dim]         query_heads % kv_heads == 0
///   v [batch, local_keys, kv_heads, value_dim]
/// Errors: ShapeError and UnsupportedError before anything is sent, on all ranks alike; CommunicationError where the
/// ranks were called differently or a peer is lost. After an error past that point the ring is closed.
template <Communicator C, Backend B, class Predicate = EveryPair>
  requires std::same_as<typename C::memory_space, typename B::memory_space>
class RingAttention {
 public:
  using Space = typename B::memory_space;

  /// Throws nothing: options are checked by the first call, together with those of the other ranks.
  RingAttention(C& communicator, B& backend, Options options = {}, Predicate predicate = {})
      : communicator_(&communicator), backend_(&backend), options_(std::move(options)), predicate_(std::move(predicate)) {}

  Options const& options() const { return options_; }

  /// output and lse of this rank's queries over the keys of all ranks. Collective.
  template <class Q, class K, class V>
  auto forward(Q const& q, K const& k, V const& v, OperandsFor<Q, Space> const& operands = {}) {
    static_assert(RequireOperands<Space, Q, K, V>::value);
    using T = MadeLike<Q, ScalarOf<Q>, 4>;
    std::optional<Forward<T>> result;
    run_forward(StepOperands<ScalarOf<Q>, Space>{view_of(q), view_of(k), view_of(v)}, operands,
                [&](AttentionShape const& shape, Index queries) {
                  std::array const output{shape.batch, queries, shape.query_heads, shape.value_dim};
                  std::array const lse{shape.batch, shape.query_heads, queries};
                  result.emplace(Forward<T>{make_in_order_of<ScalarOf<Q>>(q, output),
                                            make_like<Accumulator<ScalarOf<Q>>, 3>(q, lse), axis_order_of(q)});
                  return ForwardViews<ScalarOf<Q>>{view_of(with_axes(result->output, result->axes)), view_of(result->lse)};
                });
    return std::move(*result);
  }

  /// As forward, into the caller's memory: output [batch, local_queries, query_heads, value_dim] of any axis order and
  /// lse [batch, query_heads, local_queries]. They are written when all else has succeeded.
  template <class Q, class K, class V, class Output, class Lse>
  void forward_into(Q const& q, K const& k, V const& v, Output& output, Lse& lse,
                    OperandsFor<Q, Space> const& operands = {}) {
    static_assert(RequireOperands<Space, Q, K, V, Output>::value && RequireTensor<Lse>::value);
    ForwardViews<ScalarOf<Q>> const views{view_of(output), view_of(lse)};
    run_forward(StepOperands<ScalarOf<Q>, Space>{view_of(q), view_of(k), view_of(v)}, operands,
                [&](AttentionShape const& shape, Index queries) {
                  require_forward(shape, queries, views.output, views.lse);
                  return views;
                });
  }

  /// Gradients of a scalar whose gradient by the output is dout. `forward` is the result of the forward pass with the
  /// same operands. Collective. dk and dv hold the sum over the queries of all ranks.
  template <class DOut, class T, class Q, class K, class V>
  Gradients<T> backward(DOut const& dout, Forward<T> const& forward, Q const& q, K const& k, V const& v,
                        OperandsFor<Q, Space> const& operands = {}) {
    static_assert(RequireOperands<Space, Q, K, V, DOut, T>::value);
    using Scalar = ScalarOf<Q>;
    std::optional<Gradients<T>> result;
    run_backward<Scalar>(dout, with_axes(forward.output, forward.axes), forward.lse, q, k, v, operands, [&] {
      auto const like = [&](auto const& x) { return make_like<Scalar, 4>(q, stored_extents(axis_order_of(x), view_of(x).extents())); };
      result.emplace(Gradients<T>{like(q), like(k), like(v)});
      GradientViews<Scalar, Space> views{view_of(with_axes(result->dq, axis_order_of(q))),
                                         view_of(with_axes(result->dk, axis_order_of(k))),
                                         view_of(with_axes(result->dv, axis_order_of(v)))};
      if (operands.bias_gradient)
        views.dbias = view_of(result->dbias.emplace(make_like<Scalar, 4>(q, operands.bias->extents())));
      if (operands.sinks)
        views.dsinks = view_of(result->dsinks.emplace(make_like<Accumulator<Scalar>, 2>(q, operands.sinks->extents())));
      return views;
    });
    return std::move(*result);
  }

  /// As backward, into the caller's memory. output and lse are those of the forward pass. gradients.dq, dk, dv are
  /// shaped as q, k, v; dbias (as the bias) is needed with bias_gradient, dsinks [query_heads, n] with sinks. Their
  /// element type G is that of q, or the type of lse: gradients of 16-bit operands that are not rounded to 16 bits.
  template <class DOut, class Output, class Lse, class Q, class K, class V, class G = ScalarOf<Q>>
  void backward_into(DOut const& dout, Output const& output, Lse const& lse, Q const& q, K const& k, V const& v,
                     GradientViews<G, Space> const& gradients, OperandsFor<Q, Space> const& operands = {}) {
    static_assert(RequireOperands<Space, Q, K, V, DOut, Output>::value && RequireTensor<Lse>::value);
    static_assert(std::same_as<G, ScalarOf<Q>> || std::same_as<G, Accumulator<ScalarOf<Q>>>,
                  "annulus: gradients have the element type of q or that of lse");
    run_backward<G>(dout, output, lse, q, k, v, operands, [&] { return gradients; });
  }

  /// The plan of the last call of a pass; empty before.
  std::optional<RingPlan> const& plan(Pass pass) const { return state(pass).plan; }
  /// Bytes of the buffers that a pass holds; equal to plan(pass)->peak_buffer_bytes(rank) unless an earlier call with
  /// other operands needed more.
  Index buffer_bytes(Pass pass) const { return state(pass).buffers.bytes(); }

 private:
  struct PassState {
    std::optional<RingPlan> plan;
    CallRecord call;  ///< that the plan was made for
    RingBuffers<C, B> buffers;
  };

  template <class T>
  struct ForwardViews {
    TensorView<T, 4, Space> output;
    TensorView<Accumulator<T>, 3, Space> lse;
  };

  /// results(shape, local_queries): the ForwardViews to fill, asked for when the operands have been found good. What it
  /// throws on one rank, such as a lack of memory, all ranks throw.
  template <class T, class Results>
  void run_forward(StepOperands<T, Space> const& own, Operands<T, Space> const& operands, Results&& results) {
    ForwardViews<T> views;
    RingPlan const& plan = prepare(Pass::forward, own, operands, [&](AttentionShape const& shape) {
      views = results(shape, own.q.extent(axis::sequence));
    });
    guarded([&] {
      forward_pass(PassContext<C, B, Predicate>{plan, *communicator_, *backend_, logits_, predicate_, buffers(Pass::forward)},
                   own, operands, views.output, views.lse);
    });
  }

  /// results(): the gradients to fill, as in run_forward.
  template <class G, class DOut, class Output, class Lse, class Q, class K, class V, class Results>
  void run_backward(DOut const& dout, Output const& output, Lse const& lse, Q const& q, K const& k, V const& v,
                    OperandsFor<Q, Space> const& operands, Results&& results) {
    using T = ScalarOf<Q>;
    StepOperands<T, Space> const own{view_of(q), view_of(k), view_of(v)};
    TensorView<T const, 4, Space> const from_dout = view_of(dout), from_output = view_of(output);
    TensorView<Accumulator<T> const, 3, Space> const from_lse = view_of(lse);
    GradientViews<G, Space> gradients;
    RingPlan const& plan = prepare(Pass::backward, own, operands, [&](AttentionShape const& shape) {
      require_forward(shape, own.q.extent(axis::sequence), from_output, from_lse);
      detail::require_extents("dout", from_dout, from_output.extents(), "the extents of output");
      gradients = results();
      require_gradients(own, operands, gradients);
    });
    guarded([&] {
      backward_pass(PassContext<C, B, Predicate>{plan, *communicator_, *backend_, logits_, predicate_, buffers(Pass::backward)},
                    own, operands, from_dout, from_output, from_lse, gradients);
    });
  }

  template <class T, class L>
  static void require_forward(AttentionShape const& shape, Index local_queries, TensorView<T, 4, Space> const& output,
                              TensorView<L, 3, Space> const& lse) {
    detail::require_extents("output", output, {shape.batch, local_queries, shape.query_heads, shape.value_dim},
                            "[batch, local_queries, query_heads, value_dim]");
    detail::require_extents("lse", lse, {shape.batch, shape.query_heads, local_queries}, "[batch, query_heads, local_queries]");
  }

  template <class T, class G>
  static void require_gradients(StepOperands<T, Space> const& own, Operands<T, Space> const& operands,
                                GradientViews<G, Space> const& gradients) {
    detail::require_extents("dq", gradients.dq, own.q.extents(), "the extents of q");
    detail::require_extents("dk", gradients.dk, own.k.extents(), "the extents of k");
    detail::require_extents("dv", gradients.dv, own.v.extents(), "the extents of v");
    if (operands.bias_gradient) detail::require_extents("dbias", gradients.dbias, operands.bias->extents(), "the extents of the bias");
    if (operands.sinks) detail::require_extents("dsinks", gradients.dsinks, operands.sinks->extents(), "[query_heads, n]");
  }

  /// Checks this rank's arguments, compares all ranks' calls, and makes the plan: all ranks throw or none does.
  template <class T, class Check>
  RingPlan const& prepare(Pass pass, StepOperands<T, Space> const& own, Operands<T, Space> const& operands,
                          Check&& check_results) {
    CallRecord record;
    AttentionShape shape;
    Index const queries = own.q.extent(axis::sequence), keys = own.k.extent(axis::sequence);
    std::exception_ptr refused;
    try {
      validate_options(options_);
      validate_range<AccumulatorOf<B, T>>(options_);
      shape = validate_shapes(own.q, own.k, own.v);
      validate_operands(operands, shape, queries, keys);
      check_results(shape);
      require_first_shapes(shape, queries, keys);
      Problem const problem = problem_of(pass, shape, communicator_->size(), queries, keys, options_, operands, restricts);
      Support const support = std::as_const(*backend_).supports(problem);
      check<UnsupportedError>(static_cast<bool>(support), support.reason());
      logits_ = {problem.softmax_scale, problem.logit_softcap, problem.dropout};
      record_call(record, problem, options_, operands, static_cast<int>(sizeof(AccumulatorOf<B, T>)));
    } catch (...) {
      refused = std::current_exception();
      record.refuse(refused);
    }
    agree(*communicator_, record, records_);
    if (is_as_before(pass, record)) return *state(pass).plan;

    PlanRequest request{.pass = pass,
                        .shape = shape,
                        .query_lengths = {},
                        .key_lengths = {},
                        .sharding = options_.sharding,
                        .mask = options_.mask,
                        .query_offset = options_.query_offset,
                        .rotation = options_.rotation,
                        .element_bytes = static_cast<int>(sizeof(T)),
                        .accumulator_bytes = static_cast<int>(sizeof(AccumulatorOf<B, T>)),
                        .lse_bytes = static_cast<int>(sizeof(Accumulator<T>)),
                        .sinks = operands.sinks ? operands.sinks->extent(1) : 0,
                        .segments = static_cast<bool>(operands.query_segments),
                        .elementwise = restricts || operands.mask,
                        .bound_to_queries = operands.bias || operands.mask,
                        .in_place = lends(*communicator_)};
    if (operands.bias_gradient && pass == Pass::backward)
      request.bias_gradient_elements = operands.bias->extent(0) * operands.bias->extent(1) * operands.bias->extent(3);
    for (CallRecord const& other : records_) {
      request.query_lengths.push_back(other.local_queries);
      request.key_lengths.push_back(other.local_keys);
    }
    validate_global(request, options_, operands);
    PassState& planned = state(pass);
    planned.plan.emplace(std::move(request));
    planned.call = record;
    first_ = FirstCall{shape, queries, keys};
    return *planned.plan;
  }

  /// Whether all ranks are called as they were when the plan of the pass was made. The record of this rank holds all that
  /// a plan depends on but the lengths of the others; the options do not change.
  bool is_as_before(Pass pass, CallRecord const& call) const {
    PassState const& planned = state(pass);
    if (!planned.plan || planned.call != call) return false;
    PlanRequest const& request = planned.plan->request();
    for (std::size_t r = 0; r < records_.size(); ++r)
      if (request.query_lengths[r] != records_[r].local_queries || request.key_lengths[r] != records_[r].local_keys)
        return false;
    return true;
  }

  void require_first_shapes(AttentionShape const& shape, Index queries, Index keys) const {
    if (!first_) return;
    auto const list = [](FirstCall const& call) {
      return std::array{call.shape.batch, call.queries,        call.keys,           call.shape.query_heads,
                        call.shape.kv_heads, call.shape.head_dim, call.shape.value_dim};
    };
    auto const seen = list({shape, queries, keys});
    check<ShapeError>(seen == list(*first_), "[batch, local_queries, local_keys, query_heads, kv_heads, head_dim, value_dim] are ",
                      seen, "; the first call fixed them to ", list(*first_));
  }

  /// Past the point where all ranks agreed, a failure of one rank must end the wait of the others.
  template <class Function>
  void guarded(Function&& function) {
    try {
      function();
    } catch (std::exception const& error) {
      come_to_rest();
      communicator_->abandon(error.what());
      throw;
    } catch (...) {
      come_to_rest();
      communicator_->abandon("an exception of unknown type");
      throw;
    }
  }

  void come_to_rest() noexcept {
    try {
      backend_->synchronize();
    } catch (...) {  // the first failure is the one to report
    }
  }

  PassState& state(Pass pass) { return states_[pass == Pass::forward ? 0 : 1]; }
  PassState const& state(Pass pass) const { return states_[pass == Pass::forward ? 0 : 1]; }
  RingBuffers<C, B>& buffers(Pass pass) { return state(pass).buffers; }

  struct FirstCall {
    AttentionShape shape;
    Index queries, keys;
  };
  static constexpr bool restricts = !std::same_as<Predicate, EveryPair>;

  C* communicator_;
  B* backend_;
  Options options_;
  Predicate predicate_;
  LogitOptions logits_{};
  std::optional<FirstCall> first_;
  std::vector<CallRecord> records_;  ///< of all ranks, for the call in hand
  std::array<PassState, 2> states_;
};

template <class C, class B>
RingAttention(C&, B&, Options = {}) -> RingAttention<C, B>;
template <class C, class B, class Predicate>
RingAttention(C&, B&, Options, Predicate) -> RingAttention<C, B, Predicate>;

/// The name of the design for a RingAttention made in one expression.
template <class C, class B, class Predicate = EveryPair>
RingAttention<C, B, Predicate> attention(C& communicator, B& backend, Options options = {}, Predicate predicate = {}) {
  return {communicator, backend, std::move(options), std::move(predicate)};
}

}  // namespace annulus
