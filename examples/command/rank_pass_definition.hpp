#pragma once
// Definition of attend_on_rank, which calls the library with one of the backends that the command offers. Included only
// by the files that instantiate it.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/backend.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/nki.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "attend_on_ranks.hpp"
#include "errors.hpp"

namespace annulus_command {

/// A backend and its name. A backend without a member `threads` (0: it chooses) computes on one thread per rank.
template <class B>
struct BuiltIn {
  std::string_view name;

  static constexpr bool takes_threads = requires { B{.threads = 1}; };

  B make([[maybe_unused]] int threads) const {
    if constexpr (takes_threads)
      return B{.threads = threads};
    else
      return B();
  }
};

inline constexpr std::tuple backends{
    BuiltIn<annulus::CpuBackend>{"cpu"},
    BuiltIn<annulus::ReferenceBackend>{"reference"},
    BuiltIn<annulus::NkiBackend>{"nki"},
};

/// Calls function(entry) for each backend of the list.
template <class Function>
void for_each_backend(Function&& function) {
  std::apply([&](auto const&... entry) { (function(entry), ...); }, backends);
}

/// Calls function(backend) with a new backend. The name and threads must have passed require_backend.
template <class Function>
void with_backend(std::string_view name, int threads, Function&& function) {
  for_each_backend([&](auto const& entry) {
    if (entry.name == name) function(entry.make(threads));
  });
}

template <annulus::Scalar T>
Results<T> attend_on_rank(AnyRing& ring, Call const& call, Inputs<T> const& own, Timeline& timeline) {
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
  with_backend(call.backend, call.threads, [&](auto backend) {
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
  });
  return results;
}

}  // namespace annulus_command
