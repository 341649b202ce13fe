#pragma once
// A call on one rank of a ring, with a backend. Included only by the files that instantiate it.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/backend.hpp>
#include <utility>

#include "call.hpp"
#include "collectives.hpp"
#include "timeline.hpp"

namespace annulus_command {

/// Forward and, where dout is given, backward. Collective over the ring.
template <annulus::Scalar T, annulus::Backend B>
Results<T> attend_on_backend(B& backend, AnyRing& ring, Call const& call, Inputs<T> const& own, Timeline& timeline) {
  annulus::Operands<T> operands{.bias_gradient = call.shape.bias_gradient};
  if (own.bias) operands.bias = *own.bias;
  if (own.mask) operands.mask = *own.mask;
  if (own.query_documents) operands.query_documents = *own.query_documents;
  if (own.key_documents) operands.key_documents = *own.key_documents;
  if (own.sinks) operands.sinks = *own.sinks;
  if (own.joint_keys) operands.joint_keys = with_axes(*own.joint_keys, call.axes);
  if (own.joint_values) operands.joint_values = with_axes(*own.joint_values, call.axes);
  auto const q = with_axes(own.q, call.axes), k = with_axes(own.k, call.axes), v = with_axes(own.v, call.axes);

  Results<T> results;
  annulus::Options options = call.options;
  options.observer = [&](annulus::Interval const& interval) { timeline.add(interval); };
  annulus::RingAttention attention(ring, backend, options);
  auto forward = attention.forward(q, k, v, operands);
  if (own.dout) {
    auto gradients = attention.backward(with_axes(*own.dout, call.axes), forward, q, k, v, operands);
    results.dq = std::move(gradients.dq);
    results.dk = std::move(gradients.dk);
    results.dv = std::move(gradients.dv);
    results.dbias = std::move(gradients.dbias);
    results.dsinks = std::move(gradients.dsinks);
    // The library returns these in the order bshd, whatever that of the operands.
    if (gradients.d_joint_keys) results.d_joint_keys = copied_to_axes(call.axes, *gradients.d_joint_keys);
    if (gradients.d_joint_values) results.d_joint_values = copied_to_axes(call.axes, *gradients.d_joint_values);
  }
  results.out = std::move(forward.output);
  results.lse = std::move(forward.lse);
  return results;
}

}  // namespace annulus_command
