#pragma once
// Free functions for a single forward or backward call. Shapes and errors are those of RingAttention.

#include "annulus/attention/ring_attention.hpp"

namespace annulus {

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
