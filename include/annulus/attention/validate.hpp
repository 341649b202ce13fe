#pragma once
// Validation of the user's options and operands, by the compiler and at run time. No function here communicates.

#include <array>
#include <cmath>
#include <concepts>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "annulus/backend/backend.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "annulus/tensor/eigen.hpp"
#include "annulus/tensor/operands.hpp"
#include "annulus/tensor/tensor_like.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// Throws UnsupportedError for rules outside their domain, e.g. a softmax_scale that is not finite.
inline void validate_rules(AttentionRules const& rules) {
  if (rules.softmax_scale)
    detail::check<UnsupportedError>(std::isfinite(*rules.softmax_scale), "softmax scale is ", *rules.softmax_scale,
                                    "; accepted: any finite number, or unset for 1 / sqrt(head_dim)");
  detail::check<UnsupportedError>(std::isfinite(rules.logit_softcap) && rules.logit_softcap >= 0, "logit soft cap is ",
                                  rules.logit_softcap, "; accepted: a finite number above 0, or 0 for none");
  detail::check<UnsupportedError>(rules.dropout.probability >= 0 && rules.dropout.probability < 1,
                                  "dropout probability is ", rules.dropout.probability,
                                  "; accepted: 0 <= probability < 1");
  detail::check<UnsupportedError>(rules.mask.sink_tokens >= 0, "sink tokens: ", rules.mask.sink_tokens,
                                  "; accepted: 0 or more");
  detail::check<UnsupportedError>(rules.mask.chunk >= 0, "chunk is ", rules.mask.chunk,
                                  "; accepted: 1 or more, or 0 for no chunks");
  constexpr Index limit = unbounded / 4;
  Index const offset = rules.query_offset.value_or(0);
  detail::check<UnsupportedError>(-limit < offset && offset < limit, "query offset is ", offset,
                                  "; accepted: a position between -", limit, " and ", limit);
}

/// Throws UnsupportedError for dropout whose counter cannot hold the positions of all pairs. Positions of queries are
/// at most `reach` in magnitude, those of keys below `keys`.
inline void require_dropout_positions(Dropout const& dropout, Index reach, Index keys) {
  if (dropout.active())
    detail::check<UnsupportedError>(reach < dropout_position_limit && keys < dropout_position_limit,
                                    "dropout over positions up to ", std::max(reach, keys), "; accepted: below ",
                                    dropout_position_limit);
}

/// Global position of query 0. Throws UnsupportedError if it is unset and not clear: if queries and keys differ in
/// number and the mask depends on positions.
inline Index query_offset_of(AttentionRules const& rules, Index global_queries, Index global_keys) {
  if (rules.query_offset) return *rules.query_offset;
  Mask const& mask = rules.mask;
  bool const by_position = mask.causal || mask.window.bounded() || mask.chunk > 0 || rules.block_mask;
  detail::check<UnsupportedError>(
      global_queries == global_keys || global_queries == 0 || global_keys == 0 || !by_position,
      "the query offset is unset, with ", global_queries, " queries, ", global_keys,
      " keys (axis 1 of q and k, or axis 2 in the axis order bhsd) and a mask that depends on positions; "
      "set it to 0 to align queries and keys at the start, "
      "or to keys - queries = ",
      global_keys - global_queries, " to align them at the end, as FlashAttention 2.1 and later do");
  return 0;
}

}  // namespace annulus

namespace annulus::detail {

// True also for what is no tensor, of which another message says that.
template <class X, class Space>
concept LivesIn = !TensorLike<X> || std::same_as<SpaceOf<X>, Space>;
template <class X>
concept HasScalar = !TensorLike<X> || Scalar<ScalarOf<X>>;
template <class X, class Q>
concept HasKindOf = !TensorLike<X> || !TensorLike<Q> || (std::same_as<ScalarOf<Q>, ScalarOf<X>> && rank_of<X> == 4);

/// View of an optional tensor; without data for std::nullopt.
template <class View, class X>
View view_if_given(X& tensor) {
  if constexpr (std::same_as<std::remove_cvref_t<X>, std::nullopt_t>) {
    return {};
  } else {
    static_assert(RequireTensor<X>::value);
    return view_of(tensor);
  }
}

/// Fails to compile, with a readable message, unless the tensors are in memory `Space`.
template <class Space, class... X>
struct RequireSpace {
  static_assert((LivesIn<X, Space> && ...),
                "annulus: an operand lives in another memory space than the communicator and the backend");
  static constexpr bool value = true;
};

/// Fails to compile, with a readable message, unless q, k, v, output and dout are tensors of four axes, of one
/// supported element type, in memory `Space`.
template <class Space, class Q, class... X>
struct RequireOperands {
  static_assert((RequireTensor<Q>::value && ... && RequireTensor<X>::value));
  static_assert((HasScalar<Q> && ... && HasScalar<X>),
                "annulus: operands have elements of float, double, Eigen::half or Eigen::bfloat16");
  static_assert((HasKindOf<Q, Q> && ... && HasKindOf<X, Q>),
                "annulus: q, k, v, output and dout have four axes and the same element type");
  static_assert(RequireSpace<Space, Q, X...>::value);
  static constexpr bool value = true;
};

/// Throws UnsupportedError for a scale or cap outside the range of sums of type A. A larger scale would become
/// infinite. x / cap is denormal, and may be flushed to 0, for |x| < cap * smallest; up to the largest cap that bound
/// is half of the rounding of 1, so that no probability changes.
template <class A>
void validate_range(AttentionRules const& rules) {
  double const largest = std::numeric_limits<A>::max(), smallest = std::numeric_limits<A>::min();
  double const largest_cap = std::numeric_limits<A>::epsilon() / 4 / smallest;
  double const scale = rules.softmax_scale.value_or(0), cap = rules.logit_softcap;
  check<UnsupportedError>(std::abs(scale) <= largest, "softmax scale is ", scale, "; accepted for sums of ", sizeof(A),
                          " bytes: at most ", largest);
  check<UnsupportedError>(cap == 0 || (smallest <= cap && cap <= largest_cap), "logit soft cap is ", cap,
                          "; accepted for sums of ", sizeof(A), " bytes: ", smallest, " to ", largest_cap,
                          ", or 0 for none");
}

/// Throws ShapeError unless `view` is addressable and has the expected extents, which errors call `meaning`.
template <class T, std::size_t N, class Space>
void require_extents(std::string_view name, TensorView<T, N, Space> const& view, std::array<Index, N> const& expected,
                     std::string_view meaning) {
  require_addressable(name, view);
  check<ShapeError>(view.extents() == expected, name, " has extents ", view.extents(), "; expected ", expected, " = ",
                    meaning);
}

/// require_extents and require_own_elements, of a view that a call writes.
template <class T, std::size_t N, class Space>
void require_result(std::string_view name, TensorView<T, N, Space> const& view, std::array<Index, N> const& expected,
                    std::string_view meaning) {
  require_extents(name, view, expected, meaning);
  require_own_elements(name, view);
}

/// Throws ShapeError unless output, lse and, if given, lse_remainder have the extents of a forward pass.
template <class T, class L, class Space>
void require_forward(AttentionShape const& shape, Index local_queries, TensorView<T, 4, Space> const& output,
                     TensorView<L, 3, Space> const& lse, TensorView<L, 3, Space> const& lse_remainder) {
  require_extents("output", output, {shape.batch, local_queries, shape.query_heads, shape.value_dim},
                  "[batch, local_queries, query_heads, value_dim]");
  require_extents("lse", lse, {shape.batch, shape.query_heads, local_queries}, "[batch, query_heads, local_queries]");
  if (lse_remainder.data()) require_extents("lse_remainder", lse_remainder, lse.extents(), "the extents of lse");
}

/// Shapes of the first call of a RingAttention, which all later ones have.
struct FirstCall {
  AttentionShape shape;
  Index queries, keys;  ///< of this rank

  void require_same(FirstCall const& other) const {
    auto const list = [](FirstCall const& call) {
      return std::array{call.shape.batch,    call.queries,        call.keys,           call.shape.query_heads,
                        call.shape.kv_heads, call.shape.head_dim, call.shape.value_dim};
    };
    check<ShapeError>(list(other) == list(*this),
                      "[batch, local_queries, local_keys, query_heads, kv_heads, head_dim, value_dim] are ",
                      list(other), "; the first call fixed them to ", list(*this));
  }
};

/// Throws ShapeError unless `view`, a bias or boolean mask, is [batch|1, query_heads|1, local_queries, any].
template <class T, class Space>
void require_pairs(std::string_view name, TensorView<T, 4, Space> const& view, AttentionShape const& shape,
                   Index local_queries) {
  require_addressable(name, view);
  bool const fits = (view.extent(0) == shape.batch || view.extent(0) == 1) &&
                    (view.extent(1) == shape.query_heads || view.extent(1) == 1) && view.extent(2) == local_queries;
  auto const or_one = [](Index extent) { return extent == 1 ? "1" : std::to_string(extent) + " or 1"; };
  check<ShapeError>(fits, name, " has extents ", view.extents(), "; expected [", or_one(shape.batch), ", ",
                    or_one(shape.query_heads), ", ", local_queries,
                    ", global_keys] = [batch|1, query_heads|1, local_queries, global_keys]");
}

/// Throws ShapeError unless `gradients`, GradientViews, have the extents of their operands and no repeated elements,
/// and exactly those are given that are computed.
template <class T, class Space, class Views>
void require_gradients(StepOperands<T, Space> const& own, Operands<T, Space> const& operands, Views const& gradients) {
  require_result("dq", gradients.dq, own.q.extents(), "the extents of q");
  require_result("dk", gradients.dk, own.k.extents(), "the extents of k");
  require_result("dv", gradients.dv, own.v.extents(), "the extents of v");
  if (operands.bias_gradient)
    require_result("dbias", gradients.dbias, operands.bias->extents(), "the extents of the bias");
  else
    check<ShapeError>(!gradients.dbias.data(), "dbias is given without bias_gradient, which computes it");
  if (operands.sinks)
    require_result("dsinks", gradients.dsinks, operands.sinks->extents(), "[query_heads, n]");
  else
    check<ShapeError>(!gradients.dsinks.data(), "dsinks is given without sink logits");
  if (operands.joint_keys) {
    require_result("d_joint_keys", gradients.d_joint_keys, operands.joint_keys->extents(), "the extents of joint_keys");
    require_result("d_joint_values", gradients.d_joint_values, operands.joint_values->extents(),
                   "the extents of joint_values");
  } else {
    check<ShapeError>(!gradients.d_joint_keys.data() && !gradients.d_joint_values.data(),
                      "d_joint_keys or d_joint_values are given without joint keys");
  }
}

/// End of a message about heads that do not fit: which operands to wrap in bhsd(), if their extents make sense with
/// heads before the sequence; else empty. q, k: extents as they were given.
constexpr std::string_view axis_order_hint(std::array<Index, 4> const& q, std::array<Index, 4> const& k) {
  auto const fit = [](Index query_heads, Index kv_heads) { return kv_heads >= 1 && query_heads % kv_heads == 0; };
  constexpr std::size_t sequence = axis::sequence, heads = axis::heads;
  if (fit(q[sequence], k[heads]) && q[heads] == k[sequence])
    return "; if q has heads before the sequence, pass bhsd(q)";
  if (fit(q[heads], k[sequence]) && q[sequence] == k[heads])
    return "; if k and v have heads before the sequence, pass bhsd(k) and bhsd(v)";
  if (fit(q[sequence], k[sequence]) && k[sequence] < k[heads])
    return "; if they have heads before the sequence, pass bhsd(q), bhsd(k) and bhsd(v)";
  return {};
}

/// Shape of a call, from q [batch, local_queries, query_heads, head_dim], k [batch, local_keys, kv_heads, head_dim] and
/// v [batch, local_keys, kv_heads, value_dim]. Throws ShapeError if their extents are inconsistent.
template <class T, class Space>
AttentionShape validate_shapes(TensorView<T const, 4, Space> q, TensorView<T const, 4, Space> k,
                               TensorView<T const, 4, Space> v) {
  require_addressable("q", q);
  require_addressable("k", k);
  require_addressable("v", v);
  check<ShapeError>(q.extent(axis::heads) >= 1 && q.extent(axis::dim) >= 1, "q has extents ", q.extents(),
                    "; at least one head and one dim are required");
  check<ShapeError>(k.extent(axis::heads) >= 1 && v.extent(axis::dim) >= 1, "k and v have extents ", k.extents(),
                    " and ", v.extents(), "; at least one head and one dim are required");
  check<ShapeError>(k.extent(axis::batch) == q.extent(axis::batch), "k has batch ", k.extent(axis::batch), ", q has ",
                    q.extent(axis::batch), "; they must be equal");
  check<ShapeError>(k.extent(axis::dim) == q.extent(axis::dim), "k has head_dim ", k.extent(axis::dim), ", q has ",
                    q.extent(axis::dim), "; they must be equal");
  check<ShapeError>(q.extent(axis::heads) % k.extent(axis::heads) == 0, "q has ", q.extent(axis::heads),
                    " heads, k has ", k.extent(axis::heads), "; query_heads must be a multiple of kv_heads",
                    axis_order_hint(q.extents(), k.extents()));
  bool const swapped = v.extent(1) == k.extent(2) && v.extent(2) == k.extent(1);
  require_extents("v", v, {k.extent(0), k.extent(1), k.extent(2), v.extent(3)},
                  swapped ? "[batch, local_keys, kv_heads, value_dim]; if v has heads before the sequence, pass bhsd(v)"
                          : "[batch, local_keys, kv_heads, value_dim]");
  require_countable("output", std::array{q.extent(0), q.extent(1), q.extent(2), v.extent(3)}, sizeof(T));
  require_countable("lse", std::array{q.extent(0), q.extent(2), q.extent(1)}, sizeof(Accumulator<T>));
  return {.batch = q.extent(axis::batch),
          .query_heads = q.extent(axis::heads),
          .kv_heads = k.extent(axis::heads),
          .head_dim = q.extent(axis::dim),
          .value_dim = v.extent(axis::dim)};
}

/// Throws ShapeError if an optional operand does not have the extents that tensor/operands.hpp lists, or if only one
/// side has document ids; throws UnsupportedError for bias_gradient without a bias.
template <class T, class Space>
void validate_operands(Operands<T, Space> const& operands, AttentionShape const& shape, Index local_queries,
                       Index local_keys) {
  if (operands.bias) require_pairs("bias", *operands.bias, shape, local_queries);
  if (operands.mask) require_pairs("mask", *operands.mask, shape, local_queries);
  check<UnsupportedError>(!operands.bias_gradient || operands.bias, "bias_gradient is set but no bias is given");
  check<ShapeError>(static_cast<bool>(operands.query_documents) == static_cast<bool>(operands.key_documents),
                    operands.query_documents ? "query_documents are given without key_documents"
                                             : "key_documents are given without query_documents",
                    "; give both or none");
  if (operands.query_documents) {
    require_extents("query_documents", *operands.query_documents, {shape.batch, local_queries},
                    "[batch, local_queries]");
    require_extents("key_documents", *operands.key_documents, {shape.batch, local_keys}, "[batch, local_keys]");
  }
  if (operands.sinks)
    require_extents("sinks", *operands.sinks, {shape.query_heads, operands.sinks->extent(1)},
                    "[query_heads] or [query_heads, n]");
  check<ShapeError>(
      static_cast<bool>(operands.joint_keys) == static_cast<bool>(operands.joint_values),
      operands.joint_keys ? "joint_keys are given without joint_values" : "joint_values are given without joint_keys",
      "; give both or none");
  if (!operands.joint_keys) return;
  Index const joint = operands.joint_keys->extent(axis::sequence);
  require_extents("joint_keys", *operands.joint_keys, {shape.batch, joint, shape.kv_heads, shape.head_dim},
                  "[batch, n, kv_heads, head_dim]");
  require_extents("joint_values", *operands.joint_values, {shape.batch, joint, shape.kv_heads, shape.value_dim},
                  "[batch, n, kv_heads, value_dim], with the n of joint_keys");
  check<UnsupportedError>(std::same_as<Space, HostMemory> || !operands.query_documents,
                          "joint keys and document ids are accepted together for operands in host memory");
}

/// Throws UnsupportedError for a wire type that operands of T in memory Space cannot have.
template <class T, class Space>
void validate_wire(Wire wire) {
  if (wire == Wire::as_stored) return;
  check<UnsupportedError>(sizeof(T) > 2, "wire ", name_of(wire), " for operands of ", name_of(data_type<T>),
                          "; accepted for float32 and float64, or as stored");
  check<UnsupportedError>(std::same_as<Space, HostMemory>, "wire ", name_of(wire),
                          " is accepted for operands in host memory");
}

/// Throws UnsupportedError for rules that have no meaning for keys without a position.
inline void validate_joint_keys(AttentionRules const& rules) {
  check<UnsupportedError>(!rules.dropout.active(),
                          "joint keys with dropout, which drops pairs by position; accepted: probability 0");
  check<UnsupportedError>(!rules.reproducible,
                          "joint keys with reproducible: their gradients are summed rank by rank; accepted: false");
}

/// The problem that a backend is asked to support, with Operands or CachedOperands. `predicate`: a user predicate is
/// given.
template <class T, class AnyOperands>
Problem problem_of(Pass pass, AttentionShape const& shape, int ranks, Index local_queries, Index local_keys,
                   AttentionRules rules, AnyOperands const& operands, bool predicate) {
  rules.softmax_scale = rules.scale(shape.head_dim);
  Problem problem{.pass = pass,
                  .data_type = data_type<T>,
                  .shape = shape,
                  .ranks = ranks,
                  .local_queries = local_queries,
                  .local_keys = local_keys,
                  .rules = rules,
                  .bias = static_cast<bool>(operands.bias),
                  .boolean_mask = static_cast<bool>(operands.mask),
                  .predicate = predicate,
                  .document_ids = static_cast<bool>(operands.query_documents),
                  .sinks = operands.sinks ? operands.sinks->extent(1) : 0};
  if constexpr (requires { operands.joint_keys; }) {
    problem.bias_gradient = operands.bias_gradient;
    if (operands.joint_keys) problem.joint_keys = operands.joint_keys->extent(axis::sequence);
  }
  return problem;
}

/// Throws UnsupportedError if the backend does not support the problem.
template <class B>
void require_support(B const& backend, Problem const& problem) {
  Support const support = backend.supports(problem);
  check<UnsupportedError>(static_cast<bool>(support), support.reason());
}

/// Checks that need the lengths of all ranks, with the same outcome on all ranks: throws ShapeError if a bias or mask
/// does not cover all keys, and UnsupportedError for an unclear query offset and for dropout beyond its position limit.
/// Sets the query offset of the request.
template <class T, class Space>
void validate_global(PlanRequest& request, Operands<T, Space> const& operands) {
  Index const queries = request.rows(Side::query), keys = request.rows(Side::key);
  if (operands.bias)
    check<ShapeError>(operands.bias->extent(3) == keys, "bias covers ", operands.bias->extent(3),
                      " keys; expected global_keys = ", keys);
  if (operands.mask)
    check<ShapeError>(operands.mask->extent(3) == keys, "mask covers ", operands.mask->extent(3),
                      " keys; expected global_keys = ", keys);
  request.rules.query_offset = query_offset_of(request.rules, queries, keys);
  bool const shared_bias = operands.bias_gradient && request.pass == Pass::backward && operands.bias->extent(1) == 1;
  check<UnsupportedError>(
      !(request.schedule == Schedule::both_directions && halves_kv_heads(request.shape.kv_heads) &&
        request.rules.reproducible && shared_bias),
      "schedule both directions and reproducible with the gradient of a bias that all heads share: the halves of the "
      "heads are added in an order that depends on the ranks; accepted: a bias for each head, or schedule ring");
  require_dropout_positions(request.rules.dropout, std::abs(*request.rules.query_offset) + queries, keys);
}

}  // namespace annulus::detail
