#pragma once
// Definition of attend_on_rank, which calls the library. Included only by the files that instantiate it.

#include <annulus/attention/ring_attention.hpp>
#include <utility>

#include "backends.hpp"
#include "rank_pass.hpp"

namespace annulus_command {

template <annulus::Scalar T>
Results<T> attend_on_rank(AnyRing& ring, Call const& call, Inputs<T> const& own, StepLog& log) {
  annulus::Operands<T> operands{.bias_gradient = call.shape.bias_gradient};
  if (own.bias) operands.bias = *own.bias;
  if (own.mask) operands.mask = *own.mask;
  if (own.query_segments) operands.query_segments = *own.query_segments;
  if (own.key_segments) operands.key_segments = *own.key_segments;
  if (own.sinks) operands.sinks = *own.sinks;
  auto const q = with_axes(own.q, call.axes), k = with_axes(own.k, call.axes), v = with_axes(own.v, call.axes);

  Results<T> results;
  with_backend(call.backend, call.threads, [&]<class B>(B made) {
    TracedRing<AnyRing> traced_ring(ring, log);
    TracedBackend<B> backend(std::move(made), log);
    annulus::RingAttention attention(traced_ring, backend, call.options);
    log.begin_pass(annulus::Pass::forward);
    auto forward = attention.forward(q, k, v, operands);
    log.end_pass();
    if (own.dout) {
      log.begin_pass(annulus::Pass::backward);
      auto gradients = attention.backward(with_axes(*own.dout, call.axes), forward, q, k, v, operands);
      log.end_pass();
      results.dq = std::move(gradients.dq);
      results.dk = std::move(gradients.dk);
      results.dv = std::move(gradients.dv);
      results.dbias = std::move(gradients.dbias);
      results.dsinks = std::move(gradients.dsinks);
    }
    results.out = std::move(forward.output);
    results.lse = std::move(forward.lse);
  });
  return results;
}

}  // namespace annulus_command
