#pragma once
// Results of the forward and backward passes. Their tensors are of the family of q (for Eigen: a Tensor of the same
// storage order).

#include <optional>

#include "annulus/core/scalar.hpp"
#include "annulus/tensor/axis_order.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

/// Result of the forward pass and argument of the backward pass. T: a tensor type with four axes.
template <TensorLike T>
struct Forward {
  using Lse = MadeLike<T, Accumulator<ScalarOf<T>>, 3>;

  T output;  ///< [batch, local_queries, query_heads, value_dim], in the axis order of q; a row that sees no key is 0
  Lse lse;   ///< [batch, query_heads, local_queries], natural log, sink logits included; -inf if no key is seen
  /// [batch, query_heads, local_queries], the rounding error of lse: lse + lse_remainder is the log-sum-exp to twice
  /// the precision. 0 where lse is not finite. The backward pass needs both where |lse| is large; a tensor without data
  /// counts as zeros, and then gradients have an error of about 2 |lse| roundings.
  Lse lse_remainder;
  AxisOrder axes = AxisOrder::bshd;  ///< of `output`
};

/// Result of the backward pass. Queries that see no key and keys that no query sees have gradient 0. T: a tensor type
/// with four axes.
template <TensorLike T>
struct Gradients {
  using Sinks = MadeLike<T, Accumulator<ScalarOf<T>>, 2>;

  T dq, dk, dv;                 ///< shaped as q, k and v, each in its axis order
  std::optional<T> dbias{};     ///< shaped as the bias, with bias_gradient: the share of this rank's queries
  std::optional<Sinks> dsinks{};  ///< [query_heads, n], with sink logits: summed over all ranks, equal on all
};

}  // namespace annulus
