#pragma once
// Results of the forward and backward passes. Their tensors are of q's tensor library and storage order (for Eigen: a
// Tensor).

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

/// The optional operands that a pass was given.
struct GivenOperands {
  bool bias = false;       ///< Operands::bias
  bool mask = false;       ///< Operands::mask
  bool documents = false;  ///< Operands::query_documents and key_documents
  bool sinks = false;      ///< Operands::sinks
  bool joint = false;      ///< Operands::joint_keys and joint_values

  bool operator==(GivenOperands const&) const = default;
};

/// Result of the forward pass and argument of the backward pass. T: a tensor type with four axes.
template <TensorLike T>
struct Forward {
  /// Type of lse and lse_remainder: three axes, in the accumulator type of T's elements.
  using Lse = MadeLike<T, Accumulator<ScalarOf<T>>, 3>;

  T output;  ///< [batch, local_queries, query_heads, value_dim], in the axis order of q; a row that sees no key is 0
  Lse lse;   ///< [batch, query_heads, local_queries], natural log, sink logits included; -inf if no key is seen
  /// [batch, query_heads, local_queries], the rounding error of lse: lse + lse_remainder is the log-sum-exp to twice
  /// the precision. 0 where lse is not finite. The backward pass needs both where |lse| is large; a tensor without data
  /// counts as zeros, and then gradients have an error of about 2 |lse| roundings.
  Lse lse_remainder;
  AxisOrder axes = AxisOrder::bshd;  ///< of `output`
  /// What the backward pass must be given as well; unset, in a Forward that is not the result of a call: not compared.
  std::optional<GivenOperands> given{};
};

/// Result of the backward pass. Queries that see no key and keys that no query sees have gradient 0. T: a tensor type
/// with four axes.
template <TensorLike T>
struct Gradients {
  /// Type of dsinks: two axes, in the accumulator type of T's elements.
  using Sinks = MadeLike<T, Accumulator<ScalarOf<T>>, 2>;

  T dq, dk, dv;                   ///< shaped as q, k and v, each in its axis order
  std::optional<T> dbias{};       ///< shaped as the bias, with bias_gradient: the share of this rank's queries
  std::optional<Sinks> dsinks{};  ///< [query_heads, n], with sink logits: summed over all ranks, equal on all
  /// [batch, joint keys, kv_heads, head_dim], in this order whatever that of joint_keys, if they are given: summed over
  /// all ranks, equal on all
  std::optional<T> d_joint_keys{};
  std::optional<T> d_joint_values{};  ///< the same of joint_values, [batch, joint keys, kv_heads, value_dim]
};

namespace detail {

template <class OptionalOperands>
GivenOperands given_operands(OptionalOperands const& operands) {
  return {static_cast<bool>(operands.bias), static_cast<bool>(operands.mask),
          static_cast<bool>(operands.query_segments.merged(operands.query_documents)),
          static_cast<bool>(operands.sinks), static_cast<bool>(operands.joint_keys)};
}

/// Throws ShapeError unless the backward pass is given the optional operands that the forward pass was given.
inline void require_operands_of_forward(std::optional<GivenOperands> const& forward, GivenOperands const& backward) {
  if (!forward || *forward == backward) return;
  auto const list = [](GivenOperands const& given) {
    std::string names;
    for (auto const& [is_given, name] : {std::pair{given.bias, "bias"},
                                         {given.mask, "mask"},
                                         {given.documents, "document ids"},
                                         {given.sinks, "sink logits"},
                                         {given.joint, "joint keys"}})
      if (is_given) names += (names.empty() ? "" : ", ") + std::string(name);
    return names.empty() ? "none" : names;
  };
  throw ShapeError(message_of("optional operands of the backward pass: ", list(backward),
                              "; of the forward pass: ", list(*forward), "; pass the same operands to both"));
}

/// New results of a forward pass of `q`, with this many local queries.
template <class Q, class OptionalOperands>
auto make_forward(Q const& q, AttentionShape const& shape, Index local_queries, OptionalOperands const& operands) {
  using T = ScalarOf<Q>;
  auto const statistics = [&] {
    return make_like<Accumulator<T>, 3>(q, std::array{shape.batch, shape.query_heads, local_queries});
  };
  return Forward<MadeLike<Q, T, 4>>{
      make_in_order_of<T>(q, std::array{shape.batch, local_queries, shape.query_heads, shape.value_dim}), statistics(),
      statistics(), axis_order_of(q), given_operands(operands)};
}

/// New results of a backward pass: gradients of q, k, v and of the optional operands that have one.
template <TensorLike T, class Q, class K, class V, class OptionalOperands>
Gradients<T> make_gradients(Q const& q, K const& k, V const& v, OptionalOperands const& operands) {
  using Scalar = ScalarOf<Q>;
  auto const like = [&](auto const& x) {
    return make_like<Scalar, 4>(q, stored_extents(axis_order_of(x), view_of(x).extents()));
  };
  Gradients<T> result{like(q), like(k), like(v)};
  if (operands.bias_gradient) result.dbias.emplace(make_like<Scalar, 4>(q, operands.bias->extents()));
  if (operands.sinks) result.dsinks.emplace(make_like<Accumulator<Scalar>, 2>(q, operands.sinks->extents()));
  if (operands.joint_keys) {
    result.d_joint_keys.emplace(make_like<Scalar, 4>(q, operands.joint_keys->extents()));
    result.d_joint_values.emplace(make_like<Scalar, 4>(q, operands.joint_values->extents()));
  }
  return result;
}

}  // namespace detail

}  // namespace annulus
