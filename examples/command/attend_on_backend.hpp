#pragma once
// A call on one rank of a ring, with a backend. Included only by the files that instantiate it.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/backend.hpp>
#include <annulus/comm/communicator.hpp>
#include <annulus/tensor/host_copies.hpp>
#include <optional>
#include <utility>

#include "call.hpp"
#include "timeline.hpp"

namespace annulus_command {

/// A host tensor in the memory of a backend: itself, or a copy on a device.
template <class Space, annulus::TensorLike X>
decltype(auto) placed(X const& host) {
  return annulus::HostCopies<Space>::to_space(host);
}
template <class Space, class X>
decltype(auto) placed(std::optional<X> const& host) {
  if constexpr (std::same_as<Space, annulus::HostMemory>)
    return (host);
  else
    return host ? std::optional(placed<Space>(*host)) : std::nullopt;
}

/// A result in host memory.
template <annulus::TensorLike X>
auto on_host(X result) {
  return annulus::HostCopies<annulus::SpaceOf<X>>::to_host(std::move(result));
}
template <class X>
auto on_host(std::optional<X> result) {
  return result ? std::optional(on_host(std::move(*result))) : std::nullopt;
}

/// Forward and, where dout is given, backward. Collective over the ring.
template <annulus::Scalar T, annulus::Backend B, annulus::Communicator C>
Results<T> attend_on_backend(B& backend, C& ring, Call const& call, Inputs<T> const& own, Timeline& timeline) {
  using Space = typename B::memory_space;
  auto const &bias = placed<Space>(own.bias), &joint_keys = placed<Space>(own.joint_keys),
             &joint_values = placed<Space>(own.joint_values);
  auto const& mask = placed<Space>(own.mask);
  auto const &query_documents = placed<Space>(own.query_documents), &key_documents = placed<Space>(own.key_documents);
  auto const& sinks = placed<Space>(own.sinks);
  annulus::Operands<T, Space> operands{.bias_gradient = call.shape.bias_gradient};
  if (bias) operands.bias = *bias;
  if (mask) operands.mask = *mask;
  if (query_documents) operands.query_documents = *query_documents;
  if (key_documents) operands.key_documents = *key_documents;
  if (sinks) operands.sinks = *sinks;
  if (joint_keys) operands.joint_keys = with_axes(*joint_keys, call.axes);
  if (joint_values) operands.joint_values = with_axes(*joint_values, call.axes);
  auto const q = with_axes(placed<Space>(own.q), call.axes), k = with_axes(placed<Space>(own.k), call.axes),
             v = with_axes(placed<Space>(own.v), call.axes);

  Results<T> results;
  annulus::Options options = call.options;
  options.observer = [&](annulus::Interval const& interval) { timeline.add(interval); };
  annulus::RingAttention attention(ring, backend, options);
  auto forward = attention.forward(q, k, v, operands);
  if (own.dout) {
    auto const dout = with_axes(placed<Space>(*own.dout), call.axes);
    auto gradients = attention.backward(dout, forward, q, k, v, operands);
    results.dq = on_host(std::move(gradients.dq));
    results.dk = on_host(std::move(gradients.dk));
    results.dv = on_host(std::move(gradients.dv));
    results.dbias = on_host(std::move(gradients.dbias));
    results.dsinks = on_host(std::move(gradients.dsinks));
    // The library returns these in the order bshd, whatever that of the operands.
    if (gradients.d_joint_keys)
      results.d_joint_keys = copied_to_axes(call.axes, on_host(std::move(*gradients.d_joint_keys)));
    if (gradients.d_joint_values)
      results.d_joint_values = copied_to_axes(call.axes, on_host(std::move(*gradients.d_joint_values)));
  }
  results.out = on_host(std::move(forward.output));
  results.lse = on_host(std::move(forward.lse));
  results.lse_remainder = on_host(std::move(forward.lse_remainder));
  return results;
}

}  // namespace annulus_command
