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
};

/// Probabilities of a panel and their gradients, vector v of its lanes at a time.
template <class A, class Exponent>
class PanelDerivative {
  using V = Vector<A>;
  static constexpr std::size_t vectors = Blocking<A>::panel_vectors;

 public:
  explicit PanelDerivative(RowTerms<A> const& terms) : gradient_scale_(V::of(terms.gradient_scale)) {
    for (std::size_t v = 0; v < vectors; ++v) {
      V const lse = V::load(terms.lse + v * V::lanes);
      exponent_[v] = Exponent(terms.weight_scale, lse);
      rest_[v] = multiply_add(V::load(terms.remainder + v * V::lanes), V::of(log2_of_e<A>), cut_in_base_2(lse));
      delta_[v] = V::load(terms.delta + v * V::lanes);
    }
  }
  /// See numerics/softmax.hpp.
  [[gnu::always_inline]] V weight(V product, int v) const {
    auto const vector = static_cast<std::size_t>(v);
    return exponential2(exponent_[vector](product) - rest_[vector]);
  }
  [[gnu::always_inline]] V gradient(V weight, V dweight, int v) const {
    return weight * gradient_scale_ * (dweight - delta_[static_cast<std::size_t>(v)]);
  }

 private:
  std::array<Exponent, vectors> exponent_;
  std::array<V, vectors> rest_, delta_;
  V gradient_scale_;
};

/// Calls compute(derivative) with the PanelDerivative of `terms`.
template <class A, class Compute>
[[gnu::always_inline]] inline void with_derivative(RowTerms<A> const& terms, Compute&& compute) {
  with_exponent<A>(
      any_large(terms.lse), [&]<class Exponent>(std::type_identity<Exponent>)
                                __attribute__((always_inline)) { compute(PanelDerivative<A, Exponent>(terms)); });
}

/// Replaces products of query and key by probabilities, and products of dout and value by gradients of the products of
/// query and key; [rows][panel] each. All pairs must be visible.
template <class A>
[[gnu::noinline]] void differentiate(A* products, A* dweights, Index rows, RowTerms<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  with_derivative(
      terms, [&](auto const& derivative) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) {
            Index const place = j * panel + v * lanes;
            V const weight = derivative.weight(V::load(products + place), v);
            weight.store(products + place);
            derivative.gradient(weight, V::load(dweights + place), v).store(dweights + place);
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
  with_derivative(
      terms, [&](auto const& derivative) __attribute__((always_inline)) {
        for (Index j = 0; j < rows; j += 2) {
          V weight[2][vectors], gradient[2][vectors];
#pragma GCC unroll 2
          for (int r = 0; r < 2; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; ++v) {
              Index const place = (j + r) * panel + v * lanes;
              weight[r][v] = derivative.weight(V::load(products + place), v);
              gradient[r][v] = derivative.gradient(weight[r][v], V::load(dweights + place), v);
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
  V const nothing = V::of(empty_row<A>);
  with_derivative(
      terms, [&](auto const& derivative) __attribute__((always_inline)) {
        for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < vectors; ++v) {
            Index const place = j * panel + v * lanes;
            V const logit = V::load(logits + place);
            V dweight = V::load(dweights + place);
            auto const masked = less_or_equal(logit, nothing);
            V const weight = select(masked, V::zero(), derivative.weight(logit, v));
            V kept = weight;
            if (dropout.kept) {
              kept = dropout.apply(weight, j, v);
              dweight = dropout.apply(dweight, j, v);
            }
            kept.store(logits + place);
            V gradient = derivative.gradient(weight, dweight, v);
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
