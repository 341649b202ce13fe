#pragma once
// Probabilities of a query panel and a block of keys, from their logits and log-sum-exp, and gradients of the products
// of query and key.

#include <array>
#include <cstddef>
#include <type_traits>

#include "annulus/backend/cpu/panel/online_softmax.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Statistics of the rows of a panel, one value per lane, and scales of the step.
template <class A>
struct SoftmaxStatistics {
  A const *lse, *remainder, *delta;
  A weight_scale;    ///< multiplies products to give logits
  A gradient_scale;  ///< multiplies gradients of logits to give those of products of query and key
};

/// Probabilities of a panel and their gradients, vector v of its lanes at a time.
template <class A, class Exponent>
class SoftmaxGradient {
  using V = Vector<A>;
  static constexpr std::size_t vectors = Blocking<A>::panel_vectors;

 public:
  explicit SoftmaxGradient(SoftmaxStatistics<A> const& terms) : gradient_scale_(V::of(terms.gradient_scale)) {
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

/// Calls compute(derivative) with the SoftmaxGradient of `terms`.
template <class A, class Compute>
[[gnu::always_inline]] inline void with_softmax_gradient(SoftmaxStatistics<A> const& terms, Compute&& compute) {
  with_exponent<A>(
      any_large(terms.lse), [&]<class Exponent>(std::type_identity<Exponent>)
                                __attribute__((always_inline)) { compute(SoftmaxGradient<A, Exponent>(terms)); });
}

/// Replaces products of query and key by probabilities, and products of dout and value by gradients of the products of
/// query and key; [rows][panel] each. All pairs must be visible.
template <class A>
[[gnu::noinline]] void softmax_gradient(A* products, A* dweights, Index rows, SoftmaxStatistics<A> const& terms) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  with_softmax_gradient(
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

/// Multiplies gradients of logits by `scale` and by the slope of a soft cap at `slope`, unless null, to give those of
/// products.
template <class A>
[[gnu::always_inline]] inline Vector<A> scaled_gradients(Vector<A> gradients, A scale, A const* slope) {
  using V = Vector<A>;
  V const scaled = gradients * V::of(scale);
  if (!slope) return scaled;
  // The slope of an invisible pair may be NaN; its gradient is 0.
  auto const vanishes = less_or_equal(larger(gradients, V::zero() - gradients), V::zero());
  return select(vanishes, V::zero(), scaled * V::load(slope));
}

/// The same for `count` gradients.
template <class A>
[[gnu::noinline]] void scale_gradients(A* gradients, A const* slope, Index count, A scale) {
  for (Index e = 0; e < count; e += Vector<A>::lanes)
    scaled_gradients(Vector<A>::load(gradients + e), scale, slope ? slope + e : nullptr).store(gradients + e);
}

/// Rows of logits, of which some may be masked (-inf), and of products of dout and value, [rows][panel] each.
template <class A>
struct MaskedRows {
  A *logits, *dweights;
  A const* slope;             ///< of a soft cap, [rows][panel]; null: none
  DropoutFactors<A> dropout;  ///< of the rows
};

/// The probability times the factor of dropout, and the gradient of the product.
template <class A>
struct WeightGradient {
  Vector<A> weight, gradient;
};

/// Those of vector v of row j, at `place` of the blocks; 0 for masked pairs. `for_bias`: the gradient without the slope.
template <class A, class Derivative>
[[gnu::always_inline]] inline WeightGradient<A> masked_softmax_gradient_of_vector(MaskedRows<A> const& rows,
                                                                                  Derivative const& derivative,
                                                                                  bool for_bias, Index j, int v,
                                                                                  Index place) {
  using V = Vector<A>;
  V const logit = V::load(rows.logits + place);
  V dweight = V::load(rows.dweights + place);
  auto const masked = less_or_equal(logit, V::of(empty_row<A>));
  V const weight = select(masked, V::zero(), derivative.weight(logit, v));
  V kept = weight;
  if (rows.dropout.kept) {
    kept = rows.dropout.apply(weight, j, v);
    dweight = rows.dropout.apply(dweight, j, v);
  }
  V gradient = derivative.gradient(weight, dweight, v);
  if (rows.slope && !for_bias) gradient = gradient * V::load(rows.slope + place);
  // Values of a masked pair may be NaN and are not used.
  return {kept, select(masked, V::zero(), gradient)};
}

/// Replaces logits by probabilities times the factors of dropout, and products of dout and value by gradients of the
/// products of query and key; `for_bias`: by those of the logits, which scale_gradients() multiplies later.
template <class A>
[[gnu::noinline]] void masked_softmax_gradient(MaskedRows<A> const& rows, bool for_bias, Index count,
                                               SoftmaxStatistics<A> terms) {
  if (for_bias) terms.gradient_scale = A(1);
  with_softmax_gradient(
      terms, [&](auto const& derivative) __attribute__((always_inline)) {
        for (Index j = 0; j < count; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < Blocking<A>::panel_vectors; ++v) {
            Index const place = j * Blocking<A>::panel + v * Vector<A>::lanes;
            auto const [weight, gradient] = masked_softmax_gradient_of_vector(rows, derivative, for_bias, j, v, place);
            weight.store(rows.logits + place);
            gradient.store(rows.dweights + place);
          }
      });
}

#if defined(ANNULUS_CPU_HAS_PAIRS)
/// Where weights and gradients of two rows are written next as pairs: both joined along the lanes, and gradients joined
/// along the rows.
struct JoinedRows {
  BfloatPair *weight_lanes, *gradient_lanes, *gradient_rows;

  static constexpr int vectors = Blocking<float>::panel_vectors;
  using TwoRows = Vector<float>[2][vectors];

  [[gnu::always_inline]] void store(TwoRows const& weight, TwoRows const& gradient) {
    using O = Operand<BfloatPair>;
    constexpr int lanes = Vector<float>::lanes;
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
};

/// Like softmax_gradient(), for an even number of rows, but writes the results as pairs.
[[gnu::noinline]] inline void softmax_gradient_to_pairs(float const* products, float const* dweights, Index rows,
                                                        SoftmaxStatistics<float> const& terms, JoinedRows joined) {
  using V = Vector<float>;
  constexpr int lanes = V::lanes, panel = Blocking<float>::panel;
  with_softmax_gradient(
      terms, [&](auto const& derivative) __attribute__((always_inline)) {
        for (Index j = 0; j < rows; j += 2) {
          JoinedRows::TwoRows weight, gradient;
#pragma GCC unroll 2
          for (int r = 0; r < 2; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < JoinedRows::vectors; ++v) {
              Index const place = (j + r) * panel + v * lanes;
              weight[r][v] = derivative.weight(V::load(products + place), v);
              gradient[r][v] = derivative.gradient(weight[r][v], V::load(dweights + place), v);
            }
          joined.store(weight, gradient);
        }
      });
}

/// Like masked_softmax_gradient(), for an even number of rows, but writes weights and gradients of products as pairs.
/// `for_bias`: replaces products of dout and value by gradients of the logits as well.
[[gnu::noinline]] inline void masked_softmax_gradient_to_pairs(MaskedRows<float> const& rows, bool for_bias,
                                                               Index count, SoftmaxStatistics<float> terms,
                                                               JoinedRows joined) {
  using V = Vector<float>;
  float const scale = terms.gradient_scale;
  if (for_bias) terms.gradient_scale = 1;
  with_softmax_gradient(
      terms, [&](auto const& derivative) __attribute__((always_inline)) {
        for (Index j = 0; j < count; j += 2) {
          JoinedRows::TwoRows weights, gradients;
#pragma GCC unroll 2
          for (int r = 0; r < 2; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < JoinedRows::vectors; ++v) {
              Index const place = (j + r) * Blocking<float>::panel + v * V::lanes;
              auto const [weight, gradient] =
                  masked_softmax_gradient_of_vector(rows, derivative, for_bias, j + r, v, place);
              weights[r][v] = weight;
              gradients[r][v] = gradient;
              if (!for_bias) continue;
              gradient.store(rows.dweights + place);
              gradients[r][v] = scaled_gradients(gradient, scale, rows.slope ? rows.slope + place : nullptr);
            }
          joined.store(weights, gradients);
        }
      });
}
#endif

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
