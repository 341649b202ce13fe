#pragma once
// The passes as free functions, for callers that make one call. Shapes, options and errors: RingAttention.

#include "annulus/attention/ring_attention.hpp"

namespace annulus {

/// { output, lse, lse_remainder } of this rank's queries. Collective.
template <class C, class B, class Q, class K, class V>
auto ring_attention_forward(C& communicator, B& backend, Options const& options, Q const& q, K const& k, V const& v,
                            OperandsFor<Q, typename B::memory_space> const& operands = {}) {
  return RingAttention(communicator, backend, options).forward(q, k, v, operands);
}

/// As ring_attention_forward, into the caller's output, lse and, where it is given, lse_remainder.
template <class C, class B, class Q, class K, class V, class Output, class Lse, class Remainder = std::nullopt_t const&>
void ring_attention_forward_into(C& communicator, B& backend, Options const& options, Q const& q, K const& k,
                                 V const& v, Output& output, Lse& lse,
                                 OperandsFor<Q, typename B::memory_space> const& operands = {},
                                 Remainder&& lse_remainder = std::nullopt) {
  RingAttention(communicator, backend, options).forward_into(q, k, v, output, lse, operands, lse_remainder);
}

/// { dq, dk, dv, and where asked for dbias, dsinks }. Collective.
template <class C, class B, class DOut, class T, class Q, class K, class V>
Gradients<T> ring_attention_backward(C& communicator, B& backend, Options const& options, DOut const& dout,
                                     Forward<T> const& forward, Q const& q, K const& k, V const& v,
                                     OperandsFor<Q, typename B::memory_space> const& operands = {}) {
  return RingAttention(communicator, backend, options).backward(dout, forward, q, k, v, operands);
}

/// As ring_attention_backward, into the caller's memory.
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
