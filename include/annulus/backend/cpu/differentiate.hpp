#pragma once
// Probabilities of a query panel and a block of keys, from their logits and log-sum-exp, and gradients of the products of
// query and key.

#include <array>
#include <cstddef>
#include <type_traits>

#include "annulus/backend/cpu/weigh.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Statistics of the rows of a panel, one value per lane, and scales of the step.
template <class A>
struct RowTerms {
  A const *lse, *remainder, *delta;
  A weight_scale;    ///< multiplies products to give logits
  A gradient_scale;  ///< multiplies gradients of logits to give those of products of query and key

  /// Function exponent(score, v): probabilities, see numerics/softmax.hpp, are 2 to the power of it.
  template <class Exponent>
  [[gnu::always_inline]] auto exponents() const {
    using V = Vector<A>;
    constexpr int vectors = Blocking<A>::panel_vectors;
    std::array<Exponent, vectors> of;
    std::array<V, vectors> rest;
    for (std::size_t v = 0; v < vectors; ++v) {
      V const rounded = V::load(lse + v * V::lanes);
      of[v] = Exponent(weight_scale, rounded);
      rest[v] = multiply_add(V::load(remainder + v * V::lanes), V::of(log2_of_e<A>), cut_in_base_2(rounded));
    }
    return [ of, rest ](V score, int v) __attribute__((always_inline)) {
      auto const vector = static_cast<std::size_t>(v);
      return of[vector](score) - rest[vector];
    };
  }
};

/// Replaces products of query and key by probabilities, and products of dout and value by gradients of the products of
/// query and key; [rows][panel] each. All pairs must be visible.
template <class A>
[[gnu::noinline]] void differentiate(A* products, A* dweights, Index rows, RowTerms<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V delta[vectors];
  for (int v = 0; v < vectors; ++v) delta[v] = V::load(terms.delta + v * lanes);
  V const gradient_scale = V::of(terms.gradient_scale);
  with_exponent<A>(
      any_large(terms.lse), [&]<class Exponent>(std::type_identity<Exponent>) __attribute__((always_inline)) {
        auto const exponent = terms.template exponents<Exponent>();
#pragma GCC unroll 2
        for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) {
            Index const place = j * panel + v * lanes;
            V const weight = exponential2(exponent(V::load(products + place), v));
            weight.store(products + place);
            (weight * gradient_scale * (V::load(dweights + place) - delta[v])).store(dweights + place);
          }
      });
}

#if defined(ANNULUS_CPU_HAS_PAIRS)
/// The same for an even number of rows, but writes the results as pairs: weights and gradients joined along the lanes,
/// and gradients joined along the rows.
[[gnu::noinline]] inline void differentiate_to_pairs(float const* products, float const* dweights, Index rows,
                                                     RowTerms<float> const& terms, BfloatPair* weight_lanes,
                                                     BfloatPair* gradient_lanes, BfloatPair* gradient_rows) {
  using V = Vector<float>;
  using O = Operand<BfloatPair>;
  constexpr int vectors = Blocking<float>::panel_vectors, lanes = V::lanes, panel = Blocking<float>::panel;
  V delta[vectors];
  for (int v = 0; v < vectors; ++v) delta[v] = V::load(terms.delta + v * lanes);
  V const gradient_scale = V::of(terms.gradient_scale);
  with_exponent<float>(
      any_large(terms.lse), [&]<class Exponent>(std::type_identity<Exponent>) __attribute__((always_inline)) {
        auto const exponent = terms.template exponents<Exponent>();
        for (Index j = 0; j < rows; j += 2) {
          V weight[2][vectors], gradient[2][vectors];
#pragma GCC unroll 2
          for (int r = 0; r < 2; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
              Index const place = (j + r) * panel + v * lanes;
              weight[r][v] = exponential2(exponent(V::load(products + place), v));
              gradient[r][v] = weight[r][v] * gradient_scale * (V::load(dweights + place) - delta[v]);
            }
#pragma GCC unroll 2
          for (int r = 0; r < 2; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v += 2, weight_lanes += lanes, gradient_lanes += lanes) {
              O::store(O::pairs_of_lanes(weight[r][v], weight[r][v + 1]), weight_lanes);
              O::store(O::pairs_of_lanes(gradient[r][v], gradient[r][v + 1]), gradient_lanes);
            }
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v, gradient_rows += lanes)
            O::store(O::pairs_of_rows(gradient[0][v], gradient[1][v]), gradient_rows);
        }
      });
}
#endif

/// The same for pairs of which some may be masked (a logit of -inf), with dropout, and with the slope of a soft cap,
/// [rows][panel], unless null. Probabilities are multiplied by the factors of dropout.
template <class A>
[[gnu::noinline]] void differentiate_masked(A* logits, A* dweights, A const* slope, DropoutFactors<A> const& dropout,
                                            Index rows, RowTerms<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V delta[vectors];
  for (int v = 0; v < vectors; ++v) delta[v] = V::load(terms.delta + v * lanes);
  V const nothing = V::of(empty_row<A>), gradient_scale = V::of(terms.gradient_scale);
  with_exponent<A>(
      any_large(terms.lse), [&]<class Exponent>(std::type_identity<Exponent>) __attribute__((always_inline)) {
        auto const exponent = terms.template exponents<Exponent>();
        for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) {
            Index const place = j * panel + v * lanes;
            V const logit = V::load(logits + place);
            V dweight = V::load(dweights + place);
            auto const masked = less_or_equal(logit, nothing);
            V const weight = select(masked, V::zero(), exponential2(exponent(logit, v)));
            V kept = weight;
            if (dropout.kept) {
              kept = dropout.apply(weight, j, v);
              dweight = dropout.apply(dweight, j, v);
            }
            kept.store(logits + place);
            V gradient = weight * gradient_scale * (dweight - delta[v]);
            if (slope) gradient = gradient * V::load(slope + place);
            // Values of a masked pair may be NaN and are not used.
            select(masked, V::zero(), gradient).store(dweights + place);
          }
      });
}

/// Multiplies gradients of logits by `scale` and by the slope of a soft cap, unless null, to give those of products.
template <class A>
[[gnu::noinline]] void scale_gradients(A* gradients, A const* slope, Index count, A scale) {
  using V = Vector<A>;
  for (Index e = 0; e < count; e += V::lanes) {
    V const before = V::load(gradients + e), scaled = before * V::of(scale);
    // The slope of an invisible pair may be NaN; its gradient is 0.
    auto const vanishes = less_or_equal(larger(before, V::zero() - before), V::zero());
    (slope ? select(vanishes, V::zero(), scaled * V::load(slope + e)) : scaled).store(gradients + e);
  }
}

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
