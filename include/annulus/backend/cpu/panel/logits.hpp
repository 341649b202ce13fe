#pragma once
// Logits of a panel and a key block: products of queries and keys that are scaled, soft-capped, biased and masked.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "annulus/backend/cpu/panel/panel_bias.hpp"
#include "annulus/backend/cpu/panel/products.hpp"
#include "annulus/backend/cpu/panel/visibility_bits.hpp"
#include "annulus/backend/cpu/simd/exponential.hpp"
#include "annulus/backend/cpu/threads/workspace.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Where the softmax scale is applied: to packed queries, to products, or in the exponential. Both passes compute
/// logits in the same way, to the bit, so that a recomputed weight fits the log-sum-exp however large the logits and
/// their rounding errors are.
template <class A>
struct LogitScales {
  A query_scale = A(1);    ///< applied to queries when they are packed
  A product_scale = A(1);  ///< applied to products by finish_logits, before the soft cap
  A weight_scale = A(1);   ///< applied to scores by the exponential; positive
  bool finished = true;    ///< products are the logits, up to weight_scale; only the mask is left to apply

  template <class T>
  static LogitScales of(HostStep<T> const& step) {
    constexpr bool exact_queries = is_pair<PackedElement<T>>;
    bool const plain = step.rules.logit_softcap == 0 && !step.bias.data();
    A const scale = static_cast<A>(step.softmax_scale());
    LogitScales scales;
    if (!exact_queries)
      scales.query_scale = scale;
    else if (plain && scale > A(0))
      scales.weight_scale = scale;
    else
      scales.product_scale = scale;
    scales.finished = plain && scales.product_scale == A(1);
    return scales;
  }
};

/// Scratch for one panel and key block: blocks [key_block][panel], and bits. slope and kept are null unless a soft cap
/// (in the backward pass) or dropout needs them.
template <class A>
struct PanelScratch {
  A* scores = nullptr;
  A* slope = nullptr;  ///< of the soft cap: d logit / d (product * scale)
  BitMatrix<A>*visible = nullptr, *kept = nullptr;

  template <class T>
  static PanelScratch of(Arena& arena, HostStep<T> const& step, Pass pass) {
    auto const block_if = [&](bool needed) {
      return needed ? arena.take<A>(Index{Blocking<A>::key_block} * Blocking<A>::panel) : nullptr;
    };
    return {block_if(true), block_if(step.rules.logit_softcap > 0 && pass == Pass::backward),
            arena.take<BitMatrix<A>>(1), step.rules.dropout.active() ? arena.take<BitMatrix<A>>(1) : nullptr};
  }
};

/// Largest soft cap for which logits of 16-bit operands are computed with ShortTangent. The absolute error of a logit
/// is then at most 2^-15, which is the relative error of its weight; a rounding to bfloat16 alone has up to 2^-9.
inline constexpr float largest_short_softcap = 64;

/// cap() by a Tangent; with Slope, `slope` is not null.
template <class Tangent, bool Slope, class A>
[[gnu::always_inline]] inline void cap_by(A* products, Index count, A scale, A softcap, A* slope, Vector<A>* largest) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors;
  // Finite, so that a product of 0 is a logit of 0 for any scale.
  constexpr A greatest = std::numeric_limits<A>::max();
  V const factor = V::of(std::clamp(scale * Tangent::argument_scale / softcap, -greatest, greatest)),
          limit = V::of(softcap);
  auto const capped = [&](Index e) __attribute__((always_inline)) {
    Tangent const tangent = Tangent::of(V::load(products + e) * factor);
    V const logit = tangent.times(limit);
    logit.store(products + e);
    if constexpr (Slope) tangent.slope().store(slope + e);
    return logit;
  };
  V most[vectors];
  for (int v = 0; v < vectors; ++v) most[v] = largest ? largest[v] : V::zero();
  Index e = 0;
#pragma GCC unroll 2
  for (; e + vectors * V::lanes <= count; e += vectors * V::lanes)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) most[v] = larger(capped(e + v * V::lanes), most[v]);
  for (; e < count; e += V::lanes) capped(e);
  for (int v = 0; largest && v < vectors; ++v) largest[v] = most[v];
}

/// Replaces products of operands of type T by logits before bias and mask: softcap * tanh(product * scale / softcap),
/// and sets `slope`, unless null, to the slope of the soft cap. `largest`, unless null: the products are rows of a
/// panel, and largest[v] is raised to the largest logit of each lane.
template <class T, class A = Accumulator<T>>
[[gnu::noinline]] void cap(A* products, Index count, A scale, A softcap, A* slope, Vector<A>* largest) {
  auto const cap_with = [&]<class Tangent>(std::type_identity<Tangent>) __attribute__((always_inline)) {
    if (slope)
      cap_by<Tangent, true>(products, count, scale, softcap, slope, largest);
    else
      cap_by<Tangent, false>(products, count, scale, softcap, slope, largest);
  };
  if constexpr (sizeof(T) == 2)
    if (softcap <= largest_short_softcap) return cap_with(std::type_identity<ShortTangent>());
  cap_with(std::type_identity<HyperbolicTangent<A>>());
}

/// Sets logits [rows][panel] to -inf where see(row, v) has no bit for a lane of vector v, and raises largest[v] to the
/// largest logit of each lane.
template <class A, class See>
[[gnu::always_inline]] inline void mask_logits(A* logits, Index rows, Vector<A>* largest, See&& see) {
  using V = Vector<A>;
  using B = Blocking<A>;
  V most[B::panel_vectors];
  for (int v = 0; v < B::panel_vectors; ++v) most[v] = largest[v];
  V const nothing = V::of(empty_row<A>);
  for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
    for (int v = 0; v < B::panel_vectors; ++v) {
      A* const place = logits + j * B::panel + v * B::lanes;
      V const logit = select(see(j, v), V::load(place), nothing);
      logit.store(place);
      most[v] = larger(logit, most[v]);
    }
  for (int v = 0; v < B::panel_vectors; ++v) largest[v] = most[v];
}

/// Replaces the products of `rows` by logits, up to the factor weight_scale; -inf for invisible pairs. Raises
/// largest[v], one for each vector of the panel, to the largest logit of each lane. With Visibility::some,
/// blocks.visible decides, otherwise the bounds of the lanes. bias: that of the step for the panel.
template <class T, class A>
[[gnu::noinline]] void finish_logits(HostStep<T> const& step, BiasRows<T const> const& bias, PanelKeys<A> const& keys,
                                     Visibility visibility, BlockKeys const& rows, PanelScratch<A> const& blocks,
                                     LogitScales<A> const& scales, Vector<A>* largest) {
  using V = Vector<A>;
  using B = Blocking<A>;
  Index const first = rows.row(rows.begin) * B::panel, count = rows.end - rows.begin;
  A* const logits = blocks.scores + first;
  RowRange const in_step{rows.key(rows.begin), rows.key(rows.end)};
  bool const masked = visibility == Visibility::some || !keys.covers(in_step);
  bool const capped = step.rules.logit_softcap > 0, biased{bias};
  if (capped)
    cap<T>(logits, count * B::panel, scales.product_scale, static_cast<A>(step.rules.logit_softcap),
           blocks.slope ? blocks.slope + first : nullptr, masked || biased ? nullptr : largest);
  else if (!biased && scales.product_scale != A(1))
    for (Index e = 0; e < count * B::panel; ++e) logits[e] *= scales.product_scale;
  if (biased)
    bias.add_to_scaled(logits, capped ? A(1) : scales.product_scale, step.key_positions, in_step,
                       masked ? nullptr : largest);
  if (visibility == Visibility::some) {
    mask_logits(
        logits, count,
        largest, [&](Index j, int v) __attribute__((always_inline)) { return blocks.visible->at(v, rows.begin + j); });
  } else if (!masked) {
    if (!capped && !biased) raise_to_largest(logits, count, largest);
  } else {
    BlockBounds<A> const bounds(keys, rows.block_begin);
    mask_logits(
        logits, count, largest, [&](Index j, int v) __attribute__((always_inline)) {
          return bounds.see(v, V::of(static_cast<A>(rows.begin + j)));
        });
  }
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
