#pragma once
// RingAttention: exact attention, forward and backward, over a sequence that is sharded over the ranks of a ring.

#include <array>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/attention/call_request.hpp"
#include "annulus/attention/collective_call.hpp"
#include "annulus/attention/known_rows.hpp"
#include "annulus/attention/options.hpp"
#include "annulus/attention/records.hpp"
#include "annulus/attention/results.hpp"
#include "annulus/attention/validate.hpp"
#include "annulus/core/function_ref.hpp"
#include "annulus/ring/backward_pass.hpp"
#include "annulus/ring/forward_pass.hpp"
#include "annulus/schedule/pass_actions.hpp"
#include "annulus/tensor/eigen.hpp"

/// Exact ring attention, forward and backward.
namespace annulus {

/// Exact attention over the ranks of a ring (Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers", arXiv
/// 2310.01889).
///
/// Every rank of the ring constructs one, with equal options, and calls the same passes in the same order. The first
/// call fixes the shapes. Plans and buffers are kept, so that a call with the shapes and operands of the previous one
/// allocates only the tensors it returns (the *_into calls: nothing). A call that begins while another one runs, on
/// another thread or in a predicate, throws Error.
/// Communicator and backend must outlive it. `predicate(batch, head, query, key)`, on global positions (the query's
/// includes query_offset), restricts the mask further.
///
/// Shapes, in axis order bshd (other orders: bhsd(x), bhds(x)); all extents but the lengths are equal on all ranks:
///   q [batch, local_queries, query_heads, head_dim]   this rank's shard, in the order of its positions in the sharding
///   k [batch, local_keys, kv_heads, head_dim]         query_heads % kv_heads == 0
///   v [batch, local_keys, kv_heads, value_dim]
///
/// Errors: ShapeError and UnsupportedError before any rows are sent, the same on all ranks; CommunicationError if the
/// ranks were called differently or a peer is lost. A later error closes the ring: every rank that has entered the call
/// throws, within the communicator's deadline, and a new ring has to be made. Only a rank that had received everything
/// before the failure may return; with Options::checked it throws, too.
template <Communicator C, Backend B, class Predicate = EveryPair>
requires std::same_as<typename C::memory_space, typename B::memory_space>
class RingAttention {
 public:
  using Space = typename B::memory_space;  ///< of all operands and results

  /// Does not throw; options are validated, and compared across ranks, on the first call.
  RingAttention(C& communicator, B& backend, Options options = {}, Predicate predicate = {})
      : communicator_(&communicator),
        backend_(&backend),
        options_(std::move(options)),
        predicate_(std::move(predicate)),
        calls_(communicator, backend, "RingAttention") {
    options_.ranks_per_group = options_.group.merged(options_.ranks_per_group);
  }

  /// Movable only: other ranks may be reading its buffers.
  RingAttention(RingAttention&&) = default;
  RingAttention& operator=(RingAttention&&) = default;  ///< see the constructor

  Options const& options() const { return options_; }  ///< as given

  /// Attention of this rank's queries over the keys of all ranks: output [batch, local_queries, query_heads, value_dim]
  /// in the axis order of q, lse and lse_remainder [batch, query_heads, local_queries]. Collective.
  template <class Q, class K, class V>
  auto forward(Q const& q, K const& k, V const& v, OperandsFor<Q, Space> const& operands = {}) {
    static_assert(detail::RequireOperands<Space, Q, K, V>::value);
    std::optional<Forward<MadeLike<Q, ScalarOf<Q>, 4>>> result;
    auto const make = [&](AttentionShape const& shape, Index queries) {
      result.emplace(detail::make_forward(q, shape, queries, operands));
      return ForwardViews<ScalarOf<Q>>{view_of(with_axes(result->output, result->axes)), view_of(result->lse),
                                       view_of(result->lse_remainder)};
    };
    run_forward<ScalarOf<Q>>(call_of(Pass::forward, operands), {view_of(q), view_of(k), view_of(v)}, operands, make);
    return std::move(*result);
  }

  /// Same as forward, but writes to the caller's memory: output [batch, local_queries, query_heads, value_dim] in any
  /// axis order, lse and, if given, lse_remainder (results.hpp) [batch, query_heads, local_queries]. They must not
  /// share memory with operands or each other. Nothing is written before all steps have succeeded, unless memory runs
  /// out. Also throws ShapeError, on all ranks, if one of these has other extents.
  template <class Q, class K, class V, class Output, class Lse, class Remainder = std::nullopt_t const&>
  void forward_into(Q const& q, K const& k, V const& v, Output& output, Lse& lse,
                    OperandsFor<Q, Space> const& operands = {}, Remainder&& lse_remainder = std::nullopt) {
    static_assert(detail::RequireOperands<Space, Q, K, V, Output>::value && RequireTensor<Lse>::value);
    using Statistics = TensorView<Accumulator<ScalarOf<Q>>, 3, Space>;
    ForwardViews<ScalarOf<Q>> const views{view_of(output), view_of(lse),
                                          detail::view_if_given<Statistics>(lse_remainder)};
    auto const given = [&](AttentionShape const& shape, Index queries) {
      detail::require_forward(shape, queries, views.output, views.lse, views.lse_remainder);
      detail::require_own_elements("output", views.output);
      detail::require_own_elements("lse", views.lse);
      if (views.lse_remainder.data()) detail::require_own_elements("lse_remainder", views.lse_remainder);
      return views;
    };
    run_forward<ScalarOf<Q>>(call_of(Pass::forward, operands), {view_of(q), view_of(k), view_of(v)}, operands, given);
  }

  /// Gradients of a scalar whose gradient with respect to the output is dout [batch, local_queries, query_heads,
  /// value_dim]. `forward`: result of the forward pass with the same operands, otherwise throws ShapeError. Returns dq,
  /// dk, dv shaped as q, k, v; dk and dv are summed over the queries of all ranks. dbias and dsinks: results.hpp.
  /// Collective.
  template <class DOut, class T, class Q, class K, class V>
  Gradients<T> backward(DOut const& dout, Forward<T> const& forward, Q const& q, K const& k, V const& v,
                        OperandsFor<Q, Space> const& operands = {}) {
    static_assert(detail::RequireOperands<Space, Q, K, V, DOut, T>::value);
    using Scalar = ScalarOf<Q>;
    std::optional<Gradients<T>> result;
    auto const make = [&] {
      detail::require_operands_of_forward(forward.given, detail::given_operands(operands));
      result.emplace(detail::make_gradients<T>(q, k, v, operands));
      GradientViews<Scalar, Space> views{view_of(with_axes(result->dq, axis_order_of(q))),
                                         view_of(with_axes(result->dk, axis_order_of(k))),
                                         view_of(with_axes(result->dv, axis_order_of(v)))};
      if (result->dbias) views.dbias = view_of(*result->dbias);
      if (result->dsinks) views.dsinks = view_of(*result->dsinks);
      if (result->d_joint_keys) views.d_joint_keys = view_of(*result->d_joint_keys);
      if (result->d_joint_values) views.d_joint_values = view_of(*result->d_joint_values);
      return views;
    };
    run_backward<Scalar, Scalar>(call_of(Pass::backward, operands), {view_of(q), view_of(k), view_of(v)},
                                 {view_of(dout), view_of(with_axes(forward.output, forward.axes)), view_of(forward.lse),
                                  view_of(forward.lse_remainder)},
                                 operands, make);
    return std::move(*result);
  }

  /// Same as backward, but writes to the caller's memory, which must not be that of operands. output [batch,
  /// local_queries, query_heads, value_dim], lse and lse_remainder [batch, query_heads, local_queries] are those of the
  /// forward pass. gradients.dq, dk, dv are shaped as q, k, v; dbias (shaped as the bias) is required with
  /// bias_gradient, dsinks [query_heads, n] with sink logits. Also throws ShapeError, on all ranks, if one of these has
  /// other extents. The element type G of dq, dk, dv and dbias is that of q or that of lse; the latter avoids rounding
  /// the gradients of 16-bit operands to 16 bits. lse_remainder counts as 0 if not given: gradients then have an error
  /// of about 2 |lse| roundings, and where |lse| is so large that the logarithm of the number of keys is lost next to
  /// it, they are wrong by a factor of up to that number.
  template <class DOut, class Output, class Lse, class Q, class K, class V, class G = ScalarOf<Q>,
            class Remainder = std::nullopt_t>
  void backward_into(DOut const& dout, Output const& output, Lse const& lse, Q const& q, K const& k, V const& v,
                     GradientViews<G, Space> const& gradients, OperandsFor<Q, Space> const& operands = {},
                     Remainder const& lse_remainder = std::nullopt) {
    static_assert(detail::RequireOperands<Space, Q, K, V, DOut, Output>::value && RequireTensor<Lse>::value);
    static_assert(std::same_as<G, ScalarOf<Q>> || std::same_as<G, Accumulator<ScalarOf<Q>>>,
                  "annulus: gradients have the element type of q or that of lse");
    using Statistics = TensorView<Accumulator<ScalarOf<Q>> const, 3, Space>;
    auto const given = [&] { return gradients; };
    run_backward<ScalarOf<Q>, G>(
        call_of(Pass::backward, operands), {view_of(q), view_of(k), view_of(v)},
        {view_of(dout), view_of(output), view_of(lse), detail::view_if_given<Statistics>(lse_remainder)}, operands,
        given);
  }

  /// Takes part in a call for a rank that has no views to pass, because its arguments are not tensors of the right
  /// types: all ranks throw `reason`, as for other invalid arguments, and the ring stays open. `call`: Operands::call.
  /// Collective.
  void refuse(Pass pass, std::exception_ptr reason, std::optional<Index> call = {}) {
    auto const refused = [&](detail::CallRecord&) { std::rethrow_exception(reason); };
    calls_.execute({pass, call, is_checked(), {}}, [&](Call& begun) { calls_.compare(begun, refused); });
  }

  /// This rank's shard of a whole tensor that rank 0 passes, under the sharding of the options:
  ///   q, k, v, dout, output  [batch, tokens, heads, dim] -> [batch, local rows, heads, dim]
  ///   document ids           [batch, tokens] -> [batch, local rows]
  ///   bhsd(bias or mask)     [batch, heads, queries, keys] -> [batch, heads, local_queries, keys]
  ///   lse, with {.axis = 2}  [batch, heads, queries] -> [batch, heads, local_queries]
  /// What has a row for each key needs {.side = Side::key} if keys differ from queries in number or sharding. The first
  /// scatter or call fixes the rows of a side. Collective, as annulus::scatter; also throws ShapeError, on all ranks,
  /// for other numbers of rows than before.
  template <class X>
  auto scatter(X const& global, Along const& along = {}) {
    return detail::scatter_rows(*communicator_, global, options_.sharding, along,
                                [&](Index rows) { known_rows_.fix(along.side, rows, any_plan()); });
  }
  /// The whole tensor on every rank, from the shards of all ranks: the reverse of scatter, with its shapes. Collective,
  /// as annulus::gather.
  template <class X>
  auto gather(X const& local, Along const& along = {}) const {
    return annulus::gather(*communicator_, local, options_.sharding, along);
  }

  /// The plan of the last call of a pass; empty before the first one.
  std::optional<RingPlan> const& plan(Pass pass) const { return state(pass).plan; }
  /// Global positions of this rank's queries (counted from the query offset) or keys, in the order of their rows: what
  /// a rotary embedding needs. Known after the first scatter or call, otherwise throws Error. Before the first call a
  /// side that was not scattered counts as having as many rows as the other one. Not collective.
  std::vector<Index> positions(Side side = Side::query) const {
    RingPlan const* const known = any_plan();
    if (!known) return known_rows_.positions(*communicator_, options_, side);
    PlanRequest const& request = known->request();
    std::vector<Index> places =
        positions_of(request.sharding.segments(side, communicator_->rank(), request.lengths(side)));
    if (side == Side::query)
      for (Index& position : places) position += request.rules.query_offset.value_or(0);
    return places;
  }
  /// Bytes of the buffers held for a pass. Equal to plan(pass)->peak_buffer_bytes(rank) unless an earlier call with
  /// other operands needed more.
  Index buffer_bytes(Pass pass) const { return state(pass).memory.slots.bytes(); }

 private:
  using Call = detail::CollectiveCall;

  struct PassState {
    std::optional<RingPlan> plan;
    ActionList actions;             ///< of this rank
    detail::CallRecord call;        ///< call that the plan was made for
    detail::RecordedCall recorded;  ///< what its record was made from
    int gradient_bytes = 0;         ///< see prepare()
    detail::PassMemory<C, B> memory;
  };

  template <class T>
  using ForwardViews = ForwardResults<T, Accumulator<T>, Space>;

  /// What the backward pass takes in addition to q, k and v; lse_remainder without data counts as 0.
  template <class T>
  struct BackwardViews {
    TensorView<T const, 4, Space> dout, output;
    TensorView<Accumulator<T> const, 3, Space> lse, lse_remainder;
  };

  // run_forward and run_backward depend on no tensor type, and are neither inline nor defined in the class, so that a
  // program need not compile those that annulus::cpu holds (compiled.hpp).

  /// results(shape, local_queries) returns the views to write to; it is called when the operands have been validated.
  /// An error that it throws on one rank, such as std::bad_alloc, makes all ranks throw.
  template <class T>
  void run_forward(Call begun, StepOperands<T, Space> const& own, Operands<T, Space> operands,
                   detail::FunctionRef<ForwardViews<T>(AttentionShape const&, Index)> results);

  /// results() returns the views to write to, under the rules of run_forward.
  template <class T, class G>
  void run_backward(Call begun, StepOperands<T, Space> const& own, BackwardViews<T> const& known,
                    Operands<T, Space> operands, detail::FunctionRef<GradientViews<G, Space>()> results);

  template <class T>
  Call call_of(Pass pass, Operands<T, Space> const& operands) const {
    return {pass, operands.call, is_checked(), {options_.observer, pass, communicator_->rank()}};
  }

  bool is_checked() const { return detail::is_checked<Space>(options_.checked); }

  /// Validates this rank's arguments, converts integer operands, compares the calls of all ranks, and makes the plan.
  /// All ranks throw, or none. `gradient_bytes`: of an element of the gradients in the backward pass.
  template <class T, class Check>
  RingPlan const& prepare(Call& call, StepOperands<T, Space> const& own, Operands<T, Space>& operands,
                          int gradient_bytes, Check&& check_results) {
    Validated valid;
    detail::CallRecord const record = calls_.compare(call, [&](detail::CallRecord& mine) {
      valid.shape = validate<T>(call, own, operands);
      check_results(valid.shape);
      describe(call, own, operands, valid, mine);
    });
    PassState& planned = state(call.pass);
    if (is_as_before(planned, valid, record) && planned.gradient_bytes == gradient_bytes) return *planned.plan;
    PlanRequest request = detail::request_of<B>(call, valid.recorded.problem, options_, operands, calls_.records(),
                                                detail::shares_memory(*communicator_), gradient_bytes, valid.near);
    // All ranks have the same records, so all of them reject the same requests.
    detail::on_all_ranks(call, [&] {
      detail::validate_global(request, operands);
      RingPlan plan = best_plan(request, options_.rates);
      detail::require_support_of_groups(*backend_, valid.recorded.problem, plan);
      planned.actions = actions_of(plan, communicator_->rank());
      planned.memory.reserved = false;
      detail::check_small_plan(plan);
      planned.plan = std::move(plan);
    });
    planned.call = record;
    planned.recorded = valid.recorded;
    planned.gradient_bytes = gradient_bytes;
    first_ = detail::FirstCall{valid.shape, own.q.extent(axis::sequence), own.k.extent(axis::sequence)};
    return *planned.plan;
  }

  /// What is known of a call of this rank before its plan.
  struct Validated {
    AttentionShape shape{};
    detail::RecordedCall recorded{};
    bool repeated = false;  ///< the record is that of the call that the plan was made for
    int near = 0;           ///< see near_of
  };

  /// Validates options and operands, and converts integer operands.
  template <class T>
  AttentionShape validate(Call const& call, StepOperands<T, Space> const& own, Operands<T, Space>& operands) {
    validate_rules(rules_of(options_));
    detail::validate_range<AccumulatorOf<B, T>>(rules_of(options_));
    if constexpr (!std::same_as<Space, HostMemory>)
      detail::check<UnsupportedError>(!call.checked && !options_.require_finite,
                                      "checked and require_finite are accepted for operands in host memory");
    AttentionShape const shape = detail::validate_shapes(own.q, own.k, own.v);
    operands.query_documents = operands.query_segments.merged(operands.query_documents);
    operands.key_documents = operands.key_segments.merged(operands.key_documents);
    detail::validate_operands(operands, shape, own.q.extent(axis::sequence), own.k.extent(axis::sequence));
    detail::validate_wire<T, Space>(options_.wire);
    if (operands.joint_keys) detail::validate_joint_keys(rules_of(options_));
    operands.mask.convert("mask", converted_[0]);
    operands.query_documents.convert("query_documents", converted_[1]);
    operands.key_documents.convert("key_documents", converted_[2]);
    return shape;
  }

  /// Asks the backend whether it supports the call, and fills the record that ranks compare.
  template <class T>
  void describe(Call const& call, StepOperands<T, Space> const& own, Operands<T, Space> const& operands,
                Validated& valid, detail::CallRecord& mine) {
    Index const queries = own.q.extent(axis::sequence), keys = own.k.extent(axis::sequence);
    if (first_) first_->require_same({valid.shape, queries, keys});
    valid.recorded = {detail::problem_of<T>(call.pass, valid.shape, communicator_->size(), queries, keys,
                                            rules_of(options_), operands, restricts),
                      operands};
    Problem const& problem = valid.recorded.problem;
    detail::require_support(*backend_, problem);
    valid.near = detail::near_of(*communicator_, options_);
    PassState const& planned = state(call.pass);
    valid.repeated = planned.plan && !call.checked && planned.recorded == valid.recorded;
    if (valid.repeated) return mine.repeat(planned.call);
    detail::record_call(mine, problem, options_, operands, static_cast<int>(sizeof(AccumulatorOf<B, T>)), call.checked);
    if (valid.near > 0) mine.add("consecutive near ranks", valid.near);
  }

  /// True if all ranks are called as they were when the plan of the pass was made. A plan depends on the record of this
  /// rank, the lengths of the other ranks and the options, which do not change.
  bool is_as_before(PassState const& planned, Validated const& valid, detail::CallRecord const& call) const {
    if (!planned.plan || !(valid.repeated || planned.call.describes_same_call(call))) return false;
    PlanRequest const& request = planned.plan->request();
    auto const records = calls_.records();
    for (std::size_t r = 0; r < records.size(); ++r)
      if (request.query_lengths[r] != records[r].local_queries || request.key_lengths[r] != records[r].local_keys)
        return false;
    return true;
  }

  detail::PassContext<C, B, Predicate> context(Call const& call) {
    PassState& planned = state(call.pass);
    return {*planned.plan, planned.actions, *communicator_,         *backend_, predicate_, planned.memory,
            call.recorder, call.number,     options_.require_finite};
  }
  /// The plan of either pass; nullptr before the first call.
  RingPlan const* any_plan() const {
    for (PassState const& each : states_)
      if (each.plan) return &*each.plan;
    return nullptr;
  }
  PassState& state(Pass pass) { return states_[pass == Pass::forward ? 0 : 1]; }
  PassState const& state(Pass pass) const { return states_[pass == Pass::forward ? 0 : 1]; }

  static constexpr bool restricts = !std::same_as<Predicate, EveryPair>;

  C* communicator_;
  B* backend_;
  Options options_;
  Predicate predicate_;
  std::optional<detail::FirstCall> first_;
  detail::KnownRows known_rows_;
  /// Mask, query and key document ids, if they are given in another type than the kernels take.
  std::array<std::vector<std::byte>, 3> converted_;
  detail::CollectiveCalls<C, B> calls_;
  std::array<PassState, 2> states_;
};

template <Communicator C, Backend B, class Predicate>
requires std::same_as<typename C::memory_space, typename B::memory_space>
template <class T>
void RingAttention<C, B, Predicate>::run_forward(
    Call begun, StepOperands<T, Space> const& own, Operands<T, Space> operands,
    detail::FunctionRef<ForwardViews<T>(AttentionShape const&, Index)> results) {
  ForwardViews<T> views;
  auto const check_results = [&](AttentionShape const& shape) { views = results(shape, own.q.extent(axis::sequence)); };
  calls_.execute(begun, [&](Call& call) {
    prepare(call, own, operands, sizeof(T), check_results);
    detail::PassOperands<T, AccumulatorOf<B, T>, Space> const all(own, operands);
    detail::run_pass<detail::ForwardPass<C, B, T, Predicate>>(context(call), all, views);
  });
}

template <Communicator C, Backend B, class Predicate>
requires std::same_as<typename C::memory_space, typename B::memory_space>
template <class T, class G>
void RingAttention<C, B, Predicate>::run_backward(Call begun, StepOperands<T, Space> const& own,
                                                  BackwardViews<T> const& known, Operands<T, Space> operands,
                                                  detail::FunctionRef<GradientViews<G, Space>()> results) {
  GradientViews<G, Space> gradients;
  auto const check_results = [&](AttentionShape const& shape) {
    detail::require_forward(shape, own.q.extent(axis::sequence), known.output, known.lse, known.lse_remainder);
    detail::require_extents("dout", known.dout, known.output.extents(), "the extents of output");
    gradients = results();
    detail::require_gradients(own, operands, gradients);
  };
  calls_.execute(begun, [&](Call& call) {
    RingPlan const& plan = prepare(call, own, operands, sizeof(G), check_results);
    if (plan.request().joint_keys == 0) {  // joint keys of no rows have nothing to compute
      operands.joint_keys = operands.joint_values = std::nullopt;
      gradients.d_joint_keys = gradients.d_joint_values = {};
    }
    detail::PassOperands<T, AccumulatorOf<B, T>, Space> all(own, operands);
    all.dout = known.dout;
    all.output = known.output;
    all.lse = known.lse;
    all.lse_remainder = known.lse_remainder;
    detail::run_pass<detail::BackwardPass<C, B, T, G, Predicate>>(context(call), all, gradients);
  });
}

template <class C, class B>
RingAttention(C&, B&, Options = {}) -> RingAttention<C, B>;  ///< without a predicate
template <class C, class B, class Predicate>
RingAttention(C&, B&, Options, Predicate) -> RingAttention<C, B, Predicate>;  ///< with one

/// Constructs a RingAttention; the predicate defaults to none.
template <class C, class B, class Predicate = EveryPair>
RingAttention<C, B, Predicate> attention(C& communicator, B& backend, Options options = {}, Predicate predicate = {}) {
  return {communicator, backend, std::move(options), std::move(predicate)};
}

// Free functions for a single call. Shapes and errors are those of RingAttention.

/// RingAttention::forward. Returns output [batch, local_queries, query_heads, value_dim], lse and lse_remainder [batch,
/// query_heads, local_queries] of this rank's queries. Collective.
template <class C, class B, class Q, class K, class V>
auto ring_attention_forward(C& communicator, B& backend, Options const& options, Q const& q, K const& k, V const& v,
                            OperandsFor<Q, typename B::memory_space> const& operands = {}) {
  return RingAttention(communicator, backend, options).forward(q, k, v, operands);
}

/// RingAttention::forward_into: writes to the caller's output, lse and, if given, lse_remainder, with the extents of
/// ring_attention_forward. Collective.
template <class C, class B, class Q, class K, class V, class Output, class Lse, class Remainder = std::nullopt_t const&>
void ring_attention_forward_into(C& communicator, B& backend, Options const& options, Q const& q, K const& k,
                                 V const& v, Output& output, Lse& lse,
                                 OperandsFor<Q, typename B::memory_space> const& operands = {},
                                 Remainder&& lse_remainder = std::nullopt) {
  RingAttention(communicator, backend, options).forward_into(q, k, v, output, lse, operands, lse_remainder);
}

/// RingAttention::backward. Returns dq, dk, dv, shaped as q, k, v, dbias, shaped as the bias, with bias_gradient, and
/// dsinks [query_heads, n] with sink logits. Collective.
template <class C, class B, class DOut, class T, class Q, class K, class V>
Gradients<T> ring_attention_backward(C& communicator, B& backend, Options const& options, DOut const& dout,
                                     Forward<T> const& forward, Q const& q, K const& k, V const& v,
                                     OperandsFor<Q, typename B::memory_space> const& operands = {}) {
  return RingAttention(communicator, backend, options).backward(dout, forward, q, k, v, operands);
}

/// RingAttention::backward_into: writes to the caller's memory, with the extents of ring_attention_backward.
/// Collective.
template <class C, class B, class DOut, class Output, class Lse, class Q, class K, class V, class G = ScalarOf<Q>,
          class Remainder = std::nullopt_t>
void ring_attention_backward_into(C& communicator, B& backend, Options const& options, DOut const& dout,
                                  Output const& output, Lse const& lse, Q const& q, K const& k, V const& v,
                                  GradientViews<G, typename B::memory_space> const& gradients,
                                  OperandsFor<Q, typename B::memory_space> const& operands = {},
                                  Remainder const& lse_remainder = std::nullopt) {
  RingAttention(communicator, backend, options)
      .backward_into(dout, output, lse, q, k, v, gradients, operands, lse_remainder);
}

}  // namespace annulus
