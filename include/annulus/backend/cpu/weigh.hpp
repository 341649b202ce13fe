#pragma once
// Online softmax of a query panel over a block of scores: raising the maxima, and turning scores into weights.

#include <limits>

#include "annulus/backend/cpu/blocking.hpp"
#include "annulus/backend/cpu/simd/exponential.hpp"

namespace annulus::cpu {
inline namespace ANNULUS_CPU_TARGET {

/// Vectors of annulus::finite_maximum.
template <class A>
[[gnu::always_inline]] inline Vector<A> finite_maximum(Vector<A> maximum) {
  return larger(maximum, Vector<A>::of(std::numeric_limits<A>::lowest()));
}

namespace detail {

/// Magnitude from which adjacent floating-point numbers differ by more than 1, that is weights by more than a factor e.
template <class A>
inline constexpr A large_logit = sizeof(A) == 8 ? A(0x1p53) : A(0x1p24);

/// True if a panel with these maxima or log-sum-exps, one per lane, needs large_exponent. The threshold is half of
/// large_logit, so that both passes agree on every weight that does not vanish. Infinities and NaN do not count.
template <class A>
[[gnu::always_inline]] inline bool any_large(A const* statistics) {
  using V = Vector<A>;
  V const limit = V::of(large_logit<A> / 2), infinity = V::of(std::numeric_limits<A>::infinity());
  bool large = false;
  for (int v = 0; v < Blocking<A>::panel_vectors; ++v) {
    V const number = V::load(statistics + v * Blocking<A>::lanes), magnitude = larger(number, V::zero() - number);
    large = large || any(less_or_equal(limit, magnitude) & less(magnitude, infinity));
  }
  return large;
}

/// score * scale + negative, where `negative` is minus a maximum or log-sum-exp. Large products are rounded first, like
/// the maximum: otherwise the maximum's rounding error would remain in the exponent, and may exceed its range.
template <class A>
[[gnu::always_inline]] inline Vector<A> large_exponent(Vector<A> score, Vector<A> scale, Vector<A> negative) {
  using V = Vector<A>;
  V const product = rounded_product(score, scale), magnitude = larger(product, V::zero() - product);
  return select(less(magnitude, V::of(large_logit<A>)), multiply_add(score, scale, negative), product + negative);
}

}  // namespace detail

/// A maximum is raised only when a logit exceeds it by more than this: weights up to e^weight_headroom are accepted, so
/// that small increases, of which there are many, need no rescaling.
inline constexpr int weight_headroom = 6;

/// Raises the maxima of a panel to `largest`, which are not below them, in the rows that need it, and rescales the
/// rows' sums and output [dim][panel]. The result of a row does not depend on other rows of the panel.
template <class A>
[[gnu::noinline]] void raise(Vector<A> const* largest, A* maximum, A* sum, A* output, Index dim) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  Lanes<A> increases[vectors];
  bool any_increase = false;
  for (int v = 0; v < vectors; ++v) {
    increases[v] = less(V::of(A(weight_headroom)), largest[v] - V::load(maximum + v * lanes));
    any_increase = any_increase || any(increases[v]);
  }
  if (!any_increase) return;
  V factor[vectors];
  for (int v = 0; v < vectors; ++v) {
    V const before = V::load(maximum + v * lanes);
    select(increases[v], largest[v], before).store(maximum + v * lanes);
    factor[v] = rescale(before, V::load(maximum + v * lanes));
    (V::load(sum + v * lanes) * factor[v]).store(sum + v * lanes);
  }
  for (Index d = 0; d < dim; ++d)
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      A* const place = output + d * panel + v * lanes;
      (V::load(place) * factor[v]).store(place);
    }
}

/// Replaces scores [rows][panel] by weights e^(score * scale - maximum) and adds the weights to `sum`, through a
/// partial sum, as the rounding error of a sum grows with its length. maximum, sum: one per lane.
template <class A>
[[gnu::noinline]] void weigh(A* scores, Index rows, A scale, A const* maximum, A* sum) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  V const factor = V::of(scale);
  V negative_maximum[vectors], sums[vectors];
  for (int v = 0; v < vectors; ++v) {
    negative_maximum[v] = V::zero() - finite_maximum(V::load(maximum + v * lanes));
    sums[v] = V::zero();
  }
  auto const weigh_all = [&](auto exponent) {
#pragma GCC unroll 2
    for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        A* const place = scores + j * panel + v * lanes;
        V const weight = exponential(exponent(V::load(place), negative_maximum[v]));
        sums[v] = sums[v] + weight;
        weight.store(place);
      }
  };
  if (scale == A(1))
    weigh_all([](V score, V negative) { return score + negative; });
  else if (!detail::any_large(maximum))
    weigh_all([&](V score, V negative) { return multiply_add(score, factor, negative); });
  else
    weigh_all([&](V score, V negative) { return detail::large_exponent(score, factor, negative); });
  for (int v = 0; v < vectors; ++v) (V::load(sum + v * lanes) + sums[v]).store(sum + v * lanes);
}

#if defined(__AVX512BF16__)
/// Like weigh(), but writes the weights, rounded, as pairs of rows; the sums are of the unrounded weights. With lead 1
/// the first row is the second of its pair. Missing elements of pairs are 0.
[[gnu::noinline]] inline void weigh_to_pairs(float const* scores, Index lead, Index rows, float scale,
                                             float const* maximum, float* sum, BfloatPair* pairs) {
  using V = Vector<float>;
  constexpr int vectors = Blocking<float>::panel_vectors, lanes = Blocking<float>::lanes,
                panel = Blocking<float>::panel;
  V const factor = V::of(scale);
  V negative_maximum[vectors], sums[vectors];
  for (int v = 0; v < vectors; ++v) {
    negative_maximum[v] = V::zero() - finite_maximum(V::load(maximum + v * lanes));
    sums[v] = V::zero();
  }
  auto const weigh_all = [&](auto exponent) __attribute__((always_inline)) {
    auto const weight = [&](Index j, int v) __attribute__((always_inline)) {
      V const result = exponential(exponent(V::load(scores + j * panel + v * lanes), negative_maximum[v]));
      sums[v] = sums[v] + result;
      return result;
    };
    Index j = 0;
    if (lead == 1 && rows > 0) {
      for (int v = 0; v < vectors; ++v) store_pairs_of_rows(V::zero(), weight(0, v), pairs + v * lanes);
      pairs += panel;
      j = 1;
    }
    for (; j + 1 < rows; j += 2, pairs += panel)
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        V const even = weight(j, v);
        store_pairs_of_rows(even, weight(j + 1, v), pairs + v * lanes);
      }
    if (j < rows)
      for (int v = 0; v < vectors; ++v) store_pairs_of_rows(weight(j, v), V::zero(), pairs + v * lanes);
  };
  if (scale == 1.0f || !detail::any_large(maximum))
    weigh_all([&](V score, V negative) { return multiply_add(score, factor, negative); });
  else
    weigh_all([&](V score, V negative) { return detail::large_exponent(score, factor, negative); });
  for (int v = 0; v < vectors; ++v) (V::load(sum + v * lanes) + sums[v]).store(sum + v * lanes);
}

/// Converts block [rows][panel] to pairs of rows, rounded; `lead` as in weigh_to_pairs().
[[gnu::noinline]] inline void pair_rows_of_panel(float const* block, Index lead, Index rows, BfloatPair* pairs) {
  using V = Vector<float>;
  constexpr int vectors = Blocking<float>::panel_vectors, lanes = Blocking<float>::lanes,
                panel = Blocking<float>::panel;
  for (Index j = -lead; j < rows; j += 2, pairs += panel)
    for (int v = 0; v < vectors; ++v) {
      float const* const place = block + j * panel + v * lanes;
      store_pairs_of_rows(j < 0 ? V::zero() : V::load(place), j + 1 < rows ? V::load(place + panel) : V::zero(),
                          pairs + v * lanes);
    }
}

/// Converts block [rows][panel] to pairs of neighbouring lanes, rounded.
[[gnu::noinline]] inline void pair_lanes_of_panel(float const* block, Index rows, BfloatPair* pairs) {
  using V = Vector<float>;
  constexpr Index lanes = Blocking<float>::lanes;
  for (Index e = 0; e < rows * Blocking<float>::panel; e += 2 * lanes, pairs += lanes)
    store_pairs_of_lanes(V::load(block + e), V::load(block + e + lanes), pairs);
}
#endif

}  // namespace ANNULUS_CPU_TARGET
}  // namespace annulus::cpu
