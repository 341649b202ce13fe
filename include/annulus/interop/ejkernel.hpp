#pragma once
// Adapter of ejkernel's (EasyDeL) ring_attention with its names and conventions, for any ring and backend in host
// memory. Each rank of the axis calls it with its own contiguous part of the sequence, as under shard_map.
//
// As in ejkernel: tensors are [batch, sequence, heads, dim]; the options and their defaults (ejkernel_options.hpp).
// Unlike ejkernel: axis_name is a communicator; the mask builder is a predicate; masks, windows, chunks, bias and
// dropout use global positions, so that results do not depend on the number of ranks; and instead of JAX's automatic
// differentiation, ring_attention_fwd returns the residuals that ring_attention_bwd needs.

#include <utility>

#include "annulus/interop/check_on_all_ranks.hpp"
#include "annulus/interop/ejkernel_options.hpp"

namespace annulus::ejkernel {

/// Residuals for the backward pass. q, k, v and the operands in `options` are views: the caller's tensors must outlive
/// them.
template <TensorLike X, class MaskBuilder>
struct RingFlashResiduals {
  using T = ScalarOf<X>;

  TensorView<T const, 4> q, k, v;
  RingAttentionOptions<T> options;  ///< with bias, attention_mask and dropout_seed
  MaskBuilder mask_builder;
  X o;                                 ///< [batch, sq, query_heads, value_dim], the output
  MadeLike<X, Accumulator<T>, 3> lse;  ///< [batch, query_heads, sq], natural log with sink logits; masked rows: -inf
  MadeLike<X, Accumulator<T>, 3> lse_remainder;  ///< [batch, query_heads, sq], exact lse minus the rounded one
};

/// The forward pass, which returns RingFlashResiduals. Parameters and errors: see ring_attention.
template <Communicator C, Backend B, class Q, class K, class V, class MaskBuilder = EveryPair>
auto ring_attention_fwd(C& axis_name, B& backend, Q const& query, K const& key, V const& value,
                        RingAttentionOptions<ScalarOf<Q>> const& options = {}, MaskBuilder mask_builder = {}) {
  static_assert(RequireOperands<HostMemory, Q, K, V>::value);
  static_assert(
      std::same_as<typename C::memory_space, HostMemory> && std::same_as<typename B::memory_space, HostMemory>,
      "annulus: this adapter works in host memory");
  using T = ScalarOf<Q>;
  using X = MadeLike<Q, T, 4>;
  Options lowered;
  interop::check_on_all_ranks(axis_name, [&](CallRecord&) { lowered = options_of(options); });

  TensorView<T const, 4> const q = view_of(query);
  TensorView<T const, 4> const k = view_of(key), v = view_of(value);
  Index const batch = q.extent(axis::batch), rows = q.extent(axis::sequence), heads = q.extent(axis::heads);
  RingFlashResiduals<X, MaskBuilder> residuals{q,
                                               k,
                                               v,
                                               options,
                                               std::move(mask_builder),
                                               make_like<T, 4>(query, {batch, rows, heads, v.extent(axis::dim)}),
                                               make_like<Accumulator<T>, 3>(query, {batch, heads, rows}),
                                               make_like<Accumulator<T>, 3>(query, {batch, heads, rows})};
  RingAttention(axis_name, backend, lowered, residuals.mask_builder)
      .forward_into(q, k, v, residuals.o, residuals.lse, operands_of(options, heads), residuals.lse_remainder);
  return residuals;
}

/// Attention of this rank's queries over the keys of all ranks: [batch, sq, query_heads, value_dim]. Collective.
///
///   axis_name     the communicator; rank r holds the r-th part of the sequence; parts may have any lengths
///   query         [batch, sq, query_heads, head_dim]
///   key           [batch, sk, kv_heads, head_dim], query_heads % kv_heads == 0
///   value         [batch, sk, kv_heads, value_dim]
///   mask_builder  callable (batch, query head, query position, key position) -> bool on global positions; default: all
/// Throws on all ranks: UnsupportedError for an unsupported option, and the errors of RingAttention::forward.
template <Communicator C, Backend B, class Q, class K, class V, class MaskBuilder = EveryPair>
auto ring_attention(C& axis_name, B& backend, Q const& query, K const& key, V const& value,
                    RingAttentionOptions<ScalarOf<Q>> const& options = {}, MaskBuilder mask_builder = {}) {
  return ring_attention_fwd(axis_name, backend, query, key, value, options, std::move(mask_builder)).o;
}

/// Gradients { dq, dk, dv, dbias with bias_gradient, dsinks if softmax_aux was given } for `dout`, the gradient by the
/// output, [batch, sq, query_heads, value_dim]. Collective. dsinks is [query_heads, n], or [1, n] if the heads share
/// the sink logits. Throws on all ranks: UnsupportedError for an unsupported option, errors of RingAttention::backward.
template <Communicator C, Backend B, class X, class MaskBuilder, class DOut>
Gradients<X> ring_attention_bwd(C& axis_name, B& backend, RingFlashResiduals<X, MaskBuilder> const& residuals,
                                DOut const& dout) {
  using T = ScalarOf<X>;
  using A = Accumulator<T>;
  Options lowered;
  interop::check_on_all_ranks(axis_name, [&](CallRecord&) { lowered = options_of(residuals.options); });

  auto const like = [&](auto const& view) { return make_like<T, 4>(residuals.o, view.extents()); };
  Index const heads = residuals.q.extent(axis::heads);
  Operands<T> const operands = operands_of(residuals.options, heads);
  Gradients<X> result{like(residuals.q), like(residuals.k), like(residuals.v)};
  GradientViews<T, HostMemory> views{view_of(result.dq), view_of(result.dk), view_of(result.dv)};
  if (operands.bias_gradient) views.dbias = view_of(result.dbias.emplace(like(*operands.bias)));
  if (operands.sinks)
    views.dsinks = view_of(result.dsinks.emplace(make_like<A, 2>(residuals.o, operands.sinks->extents())));
  RingAttention(axis_name, backend, lowered, residuals.mask_builder)
      .backward_into(dout, residuals.o, residuals.lse, residuals.q, residuals.k, residuals.v, views, operands,
                     residuals.lse_remainder);

  if (residuals.options.softmax_aux.shared_by(heads)) {
    auto sums = make_like<A, 2>(residuals.o, {1, views.dsinks.extent(1)});
    TensorView<A, 2> const sum = view_of(sums);
    for (Index n = 0; n < sum.extent(1); ++n) {
      sum(0, n) = A(0);
      for (Index h = 0; h < heads; ++h) sum(0, n) += views.dsinks(h, n);
    }
    result.dsinks = std::move(sums);
  }
  return result;
}

}  // namespace annulus::ejkernel
