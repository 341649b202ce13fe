#pragma once
// Adapter of ejkernel's (EasyDeL) ring_attention with its names and conventions, for any ring and backend, and tensors
// in their memory space. Each rank of the axis calls it with its own contiguous part of the sequence, as under
// shard_map.
//
// As in ejkernel: tensors are [batch, sequence, heads, dim]; the options and their defaults.
// Unlike ejkernel: axis_name is a communicator; the mask builder is a predicate; masks, windows, chunks, bias and
// dropout use global positions, so that results do not depend on the number of ranks; and instead of JAX's automatic
// differentiation, ring_attention_fwd returns the residuals that ring_attention_bwd needs.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/interop/check_on_all_ranks.hpp"

/// ring_attention of ejkernel (EasyDeL) with its names and conventions.
namespace annulus::ejkernel {

/// No window, one number for both sides, or {left, right}: query q sees key k iff q - k <= left and k - q <= right.
/// With {0, 0} a query sees its own position only. With a causal mask the right side has no effect.
class SlidingWindow {
 public:
  constexpr SlidingWindow() = default;
  constexpr SlidingWindow(Index both_sides) : SlidingWindow(both_sides, both_sides) {}  ///< {both_sides, both_sides}
  /// Earlier and later keys within reach.
  constexpr SlidingWindow(Index left, Index right) : given_(true), left_(left), right_(right) {}

  constexpr bool given() const { return given_; }   ///< false: no window
  constexpr Index left() const { return left_; }    ///< reach to earlier keys
  constexpr Index right() const { return right_; }  ///< reach to later keys

 private:
  bool given_ = false;
  Index left_ = 0, right_ = 0;
};

/// Sink logits: extra terms of the softmax denominator. A: float (double for double operands).
///   [query_heads, n]       n for each head
///   [1, n]                 n that all heads share
///   [query_heads]          one for each head
///   [n], n != query_heads  n that all heads share
///
/// ejkernel's ring kernels read every [n] as shared, other kernels of it as one for each head: write [1, n] if n may
/// equal query_heads.
template <class A, class Space = HostMemory>
class SoftmaxAux {
 public:
  SoftmaxAux() = default;
  SoftmaxAux(std::nullopt_t) {}  ///< no sink logits

  /// A view of the tensor, which must outlive it.
  template <TensorLike X>
  requires(std::same_as<ScalarOf<X>, A>&& std::same_as<SpaceOf<X>, Space> && (rank_of<X> == 1 || rank_of<X> == 2))
      SoftmaxAux(X const& tensor)
      : one_axis_(rank_of<X> == 1), view_(row(TensorView<A const, rank_of<X>, Space>(view_of(tensor)))) {}

  explicit operator bool() const { return view_.has_value(); }  ///< true if given

  /// True if all heads share the sink logits.
  bool shared_by(Index query_heads) const {
    if (!view_) return false;
    return one_axis_ ? view_->extent(1) != query_heads : view_->extent(0) == 1 && query_heads != 1;
  }

  /// The sink logits as [query_heads, n].
  OptionalSinks<A, Space> for_heads(Index query_heads) const {
    if (!view_) return std::nullopt;
    if (shared_by(query_heads)) return broadcast(*view_, {query_heads, view_->extent(1)});
    return one_axis_ ? view_->permuted({1, 0}) : *view_;
  }

 private:
  using View = TensorView<A const, 2, Space>;
  static View row(View sinks) { return sinks; }
  static View row(TensorView<A const, 1, Space> sinks) {
    return {sinks.data(), {1, sinks.extent(0)}, {0, sinks.stride(0)}};
  }

  bool one_axis_ = false;
  std::optional<View> view_;
};

/// Block sizes and launch parameters of ejkernel's kernels. The backends of annulus choose their own, and no length has
/// to be a multiple of a block: options_of throws if one is set.
struct KernelParams {
  std::optional<Index> q_blocksize{};   ///< query rows of a block
  std::optional<Index> kv_blocksize{};  ///< key rows of a block
  std::optional<Index> num_warps{};     ///< of a GPU kernel
  std::optional<Index> num_stages{};    ///< of a GPU kernel
};
using FwdParams = KernelParams;  ///< of the forward pass
using BwdParams = KernelParams;  ///< of the backward pass

/// Options of a call, for designated initialisers; equal on all ranks except for the contents of operands. sq, sk: rows
/// of this rank's queries and keys. T: element type of query, key and value. Space: of the operands.
template <Scalar T, class Space = HostMemory>
struct RingAttentionOptions {
  /// Document ids [batch, sq] and [batch, sk], both or none. Equal ids see each other. 0 and negative ids are padding,
  /// as in ejkernel's XLA path; in its Triton path 0 is a document: add 1 to ids that count from 0.
  OptionalView<std::int32_t, 2, Space> q_segment_ids{};
  /// The ids of the keys; see q_segment_ids.
  OptionalView<std::int32_t, 2, Space> kv_segment_ids{};
  SoftmaxAux<Accumulator<T>, Space> softmax_aux{};  ///< sink logits, [query_heads, n], [1, n], [query_heads] or [n]
  OptionalView<T, 4, Space> bias{};                 ///< [batch|1, query_heads|1, sq, global keys], added to the logits
  /// [batch|1, query_heads|1, sq, global keys], true: the query may see the key
  OptionalView<bool, 4, Space> attention_mask{};
  SlidingWindow sliding_window{};  ///< default: no window
  /// Chunked attention: query q sees key k only where q / chunk_size == k / chunk_size. Default: no chunks.
  std::optional<Index> chunk_size{};
  bool causal = false;                      ///< k <= q
  std::optional<double> logits_soft_cap{};  ///< c > 0: c * tanh(x / c); default: no cap
  std::optional<double> softmax_scale{};    ///< default 1 / sqrt(head_dim); 0 means 0
  FwdParams fwd_params{};                   ///< refused unless empty
  BwdParams bwd_params{};                   ///< refused unless empty
  /// true throws UnsupportedError: the only backward pass is one loop that computes dq, dk and dv.
  bool fused_backward = false;
  double dropout_prob = 0;  ///< 0 <= dropout_prob < 1; kept probabilities are divided by 1 - dropout_prob
  /// Required with dropout_prob > 0, otherwise ignored. The dropped pairs depend only on it, positions, heads and batch
  /// items, not on the number of ranks.
  std::optional<std::uint64_t> dropout_seed{};
  /// Extension of ejkernel, which has no gradient of the bias: the backward pass returns dbias.
  bool bias_gradient = false;
};

namespace detail {

inline void refuse_blocks(std::string_view which, KernelParams const& params) {
  for (auto const& [name, value] :
       {std::pair{"q_blocksize", params.q_blocksize}, std::pair{"kv_blocksize", params.kv_blocksize},
        std::pair{"num_warps", params.num_warps}, std::pair{"num_stages", params.num_stages}})
    annulus::detail::check<UnsupportedError>(!value, which, ".", name, " is ", value.value_or(0),
                                             "; the backend chooses how it cuts its work; accepted: unset");
}

/// The annulus options. Throws UnsupportedError for an option that is invalid or unsupported.
template <Scalar T, class Space>
Options options_of(RingAttentionOptions<T, Space> const& options) {
  refuse_blocks("fwd_params", options.fwd_params);
  refuse_blocks("bwd_params", options.bwd_params);
  annulus::detail::check<UnsupportedError>(
      !options.fused_backward,
      "fused_backward = true chooses a kernel of ejkernel; here one loop yields dq, dk and dv; accepted: false");
  annulus::detail::check<UnsupportedError>(
      static_cast<bool>(options.q_segment_ids) == static_cast<bool>(options.kv_segment_ids),
      "only one of q_segment_ids and kv_segment_ids is given; give both or none");
  SlidingWindow const& window = options.sliding_window;
  annulus::detail::check<UnsupportedError>(window.left() >= 0 && window.right() >= 0, "sliding_window is (",
                                           window.left(), ", ", window.right(),
                                           "); accepted: 0 or more on each side, or none");
  annulus::detail::check<UnsupportedError>(!options.chunk_size || *options.chunk_size >= 1, "chunk_size is ",
                                           options.chunk_size.value_or(0),
                                           "; accepted: 1 or more, or unset for no chunks");
  annulus::detail::check<UnsupportedError>(
      !options.logits_soft_cap || (std::isfinite(*options.logits_soft_cap) && *options.logits_soft_cap > 0),
      "logits_soft_cap is ", options.logits_soft_cap.value_or(0),
      "; accepted: a finite number above 0, or unset for no cap");
  annulus::detail::check<UnsupportedError>(options.dropout_prob == 0 || options.dropout_seed, "dropout_prob is ",
                                           options.dropout_prob, " without a dropout_seed; give one");
  annulus::detail::check<UnsupportedError>(!options.bias_gradient || options.bias,
                                           "bias_gradient is set but no bias is given");

  Options result{.mask = {.causal = options.causal, .chunk = options.chunk_size.value_or(0)},
                 .softmax_scale = options.softmax_scale,
                 .logit_softcap = options.logits_soft_cap.value_or(0),
                 .dropout = {options.dropout_prob, options.dropout_seed.value_or(0)},
                 .query_offset = 0};
  if (window.given()) result.mask.window = {.left = window.left(), .right = window.right()};
  return result;
}

/// The annulus operands, with sink logits as [query_heads, n].
template <Scalar T, class Space>
Operands<T, Space> operands_of(RingAttentionOptions<T, Space> const& options, Index query_heads) {
  Operands<T, Space> operands;
  operands.bias = options.bias;
  operands.mask = options.attention_mask;
  operands.query_documents = options.q_segment_ids;
  operands.key_documents = options.kv_segment_ids;
  operands.sinks = options.softmax_aux.for_heads(query_heads);
  operands.bias_gradient = options.bias_gradient;
  return operands;
}

}  // namespace detail

/// Residuals for the backward pass. q, k, v and the operands in `options` are views: the caller's tensors must outlive
/// them.
template <TensorLike X, class MaskBuilder>
struct RingFlashResiduals {
  using T = ScalarOf<X>;     ///< element type of the operands
  using Space = SpaceOf<X>;  ///< their memory space

  TensorView<T const, 4, Space> q, k, v;   ///< of the forward pass
  RingAttentionOptions<T, Space> options;  ///< with bias, attention_mask and dropout_seed
  MaskBuilder mask_builder;                ///< of the forward pass
  X o;                                     ///< [batch, sq, query_heads, value_dim], the output
  MadeLike<X, Accumulator<T>, 3> lse;  ///< [batch, query_heads, sq], natural log with sink logits; masked rows: -inf
  MadeLike<X, Accumulator<T>, 3> lse_remainder;  ///< [batch, query_heads, sq], exact lse minus the rounded one
};

/// Options of a call for queries Q and backend B.
template <class Q, class B>
using OptionsFor = RingAttentionOptions<ScalarOf<Q>, typename B::memory_space>;

/// The forward pass, which returns RingFlashResiduals. Parameters and errors: see ring_attention.
template <Communicator C, Backend B, class Q, class K, class V, class MaskBuilder = EveryPair>
auto ring_attention_fwd(C& axis_name, B& backend, Q const& query, K const& key, V const& value,
                        OptionsFor<Q, B> const& options = {}, MaskBuilder mask_builder = {}) {
  using Space = typename B::memory_space;
  static_assert(interop::detail::RequireOneSpace<C, B>::value);
  static_assert(annulus::detail::RequireOperands<Space, Q, K, V>::value);
  using T = ScalarOf<Q>;
  using X = MadeLike<Q, T, 4>;
  Options lowered;
  interop::detail::check_on_all_ranks(axis_name,
                                      [&](annulus::detail::CallRecord&) { lowered = detail::options_of(options); });

  TensorView<T const, 4, Space> const q = view_of(query), k = view_of(key), v = view_of(value);
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
      .forward_into(q, k, v, residuals.o, residuals.lse, detail::operands_of(options, heads), residuals.lse_remainder);
  return residuals;
}

/// Attention of this rank's queries over the keys of all ranks: [batch, sq, query_heads, value_dim]. Collective.
///
///   axis_name     the communicator; rank r holds the r-th part of the sequence; parts may have any lengths
///   query         [batch, sq, query_heads, head_dim]
///   key           [batch, sk, kv_heads, head_dim], query_heads % kv_heads == 0
///   value         [batch, sk, kv_heads, value_dim]
///   mask_builder  callable (batch, query head, query position, key position) -> bool on global positions; default: all
///
/// Throws on all ranks: UnsupportedError for an unsupported option, and the errors of RingAttention::forward.
template <Communicator C, Backend B, class Q, class K, class V, class MaskBuilder = EveryPair>
auto ring_attention(C& axis_name, B& backend, Q const& query, K const& key, V const& value,
                    OptionsFor<Q, B> const& options = {}, MaskBuilder mask_builder = {}) {
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
  using Space = typename B::memory_space;
  static_assert(interop::detail::RequireOneSpace<C, B>::value);
  static_assert(annulus::detail::RequireOperands<Space, X, DOut>::value);
  Options lowered;
  interop::detail::check_on_all_ranks(
      axis_name, [&](annulus::detail::CallRecord&) { lowered = detail::options_of(residuals.options); });

  auto const like = [&](auto const& view) { return make_like<T, 4>(residuals.o, view.extents()); };
  Index const heads = residuals.q.extent(axis::heads);
  Operands<T, Space> const operands = detail::operands_of(residuals.options, heads);
  Gradients<X> result{like(residuals.q), like(residuals.k), like(residuals.v)};
  GradientViews<T, Space> views{view_of(result.dq), view_of(result.dk), view_of(result.dv)};
  if (operands.bias_gradient) views.dbias = view_of(result.dbias.emplace(like(*operands.bias)));
  if (operands.sinks)
    views.dsinks = view_of(result.dsinks.emplace(make_like<A, 2>(residuals.o, operands.sinks->extents())));
  RingAttention(axis_name, backend, lowered, residuals.mask_builder)
      .backward_into(dout, residuals.o, residuals.lse, residuals.q, residuals.k, residuals.v, views, operands,
                     residuals.lse_remainder);

  if (residuals.options.softmax_aux.shared_by(heads)) {
    auto sums = make_like<A, 2>(residuals.o, {1, views.dsinks.extent(1)});
    TensorView<A, 2, Space> const sum = view_of(sums);
    backend.clear(sum);
    for (Index h = 0; h < heads; ++h) backend.add(sum, TensorView<A const, 2, Space>(views.dsinks.slice(0, h, 1)));
    backend.synchronize();
    result.dsinks = std::move(sums);
  }
  return result;
}

}  // namespace annulus::ejkernel
