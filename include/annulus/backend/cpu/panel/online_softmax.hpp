#pragma once
// Online softmax of a query panel over a block of scores: raising the maxima, and turning scores into weights.

#include <limits>
#include <type_traits>
#include <utility>

#include "annulus/backend/cpu/panel/amx_products.hpp"
#include "annulus/backend/cpu/panel/visibility_bits.hpp"
#include "annulus/backend/cpu/simd/exponential.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// annulus::finite_maximum for SIMD vectors; NaN becomes the lowest finite number.
template <class A>
[[gnu::always_inline]] inline Vector<A> finite_maximum(Vector<A> maximum) {
  return larger(maximum, Vector<A>::of(std::numeric_limits<A>::lowest()));
}

/// Magnitude from which adjacent floating-point numbers differ by more than 1, that is weights by more than a factor e.
template <class A>
inline constexpr A huge_logit = sizeof(A) == 8 ? A(0x1p53) : A(0x1p24);
/// Magnitude from which a maximum or log-sum-exp needs LargeExponent.
inline constexpr int large_statistic = 1 << 12;

/// True for a maximum or log-sum-exp that needs LargeExponent. Infinities and NaN do not count.
template <class A>
[[gnu::always_inline]] inline Lanes<A> is_large(Vector<A> statistic) {
  using V = Vector<A>;
  V const magnitude = larger(statistic, V::zero() - statistic);
  return less_or_equal(V::of(A(large_statistic)), magnitude) &
         less(magnitude, V::of(std::numeric_limits<A>::infinity()));
}

/// True if one of the maxima or log-sum-exps of a panel, one per lane, is large.
template <class A>
[[gnu::always_inline]] inline bool any_large(A const* statistics) {
  bool large = false;
  for (int v = 0; v < Blocking<A>::panel_vectors; ++v)
    large = large || any(is_large(Vector<A>::load(statistics + v * Blocking<A>::lanes)));
  return large;
}

/// log2(e) times a maximum or log-sum-exp, rounded to a finite number. NaN becomes the lowest one.
template <class A>
[[gnu::always_inline]] inline Vector<A> in_base_2(Vector<A> statistic) {
  return finite_maximum(rounded_product(statistic, Vector<A>::of(log2_of_e<A>)));
}

/// What in_base_2() cuts off: weights are 2^cut times those that the statistic stands for. 0 for large statistics, of
/// which LargeExponent takes care, for infinities, and where SmallExponent does not need in_base_2().
template <class A>
[[gnu::always_inline]] inline Vector<A> cut_in_base_2(Vector<A> statistic) {
  using V = Vector<A>;
  if constexpr (!fuses_multiply_add) return V::zero();
  V const magnitude = larger(statistic, V::zero() - statistic);
  V const cut = fused_multiply_add(statistic, V::of(log2_of_e<A>), V::zero() - in_base_2(statistic));
  return select(less(magnitude, V::of(A(large_statistic))), cut, V::zero());
}

/// The exponent x of a weight 2^x = e^(score * scale - statistic) * 2^cut; `statistic`: maximum or log-sum-exp of each
/// lane, none of which is large. In one multiply-add, if that is fused; the rounding error of its factor perturbs
/// weights by less than 2^-12. Otherwise the difference comes first, as the rounding error of a product would stay in
/// it.
template <class A>
struct SmallExponent {
  Vector<A> factor, offset;

  SmallExponent() = default;
  [[gnu::always_inline]] SmallExponent(A scale, Vector<A> statistic)
      : factor(Vector<A>::of(fuses_multiply_add ? scale * log2_of_e<A> : scale)),
        offset(Vector<A>::zero() - (fuses_multiply_add ? in_base_2(statistic) : finite_maximum(statistic))) {}

  [[gnu::always_inline]] Vector<A> operator()(Vector<A> score) const {
    Vector<A> const sum = fused_multiply_add(score, factor, offset);
    return fuses_multiply_add ? sum : sum * Vector<A>::of(log2_of_e<A>);
  }
};

/// The same for statistics of any size; the exponents of a lane do not depend on other lanes. Huge products are rounded
/// first, like the maximum: a fused multiply-add would leave the rounding error of the maximum in the exponent, which
/// could overflow the exponential.
template <class A>
struct LargeExponent {
  using V = Vector<A>;
  SmallExponent<A> small;
  V factor, negative;
  Lanes<A> large;

  LargeExponent() = default;
  [[gnu::always_inline]] LargeExponent(A scale, V statistic)
      : small(scale, statistic),
        factor(V::of(scale)),
        negative(V::zero() - finite_maximum(statistic)),
        large(is_large(statistic)) {}

  [[gnu::always_inline]] V operator()(V score) const {
    V const product = rounded_product(score, factor), magnitude = larger(product, V::zero() - product);
    V const exponent =
        select(less(magnitude, V::of(huge_logit<A>)), multiply_add(score, factor, negative), product + negative);
    return select(large, exponent * V::of(log2_of_e<A>), small(score));
  }
};

/// Calls compute(type_identity<Exponent>()) with the type of the exponents that the statistics of a panel need.
template <class A, class Compute>
[[gnu::always_inline]] inline void with_exponent(bool large, Compute&& compute) {
  if (large)
    compute(std::type_identity<LargeExponent<A>>());
  else
    compute(std::type_identity<SmallExponent<A>>());
}

/// A maximum is raised only when a logit exceeds it by more than this: weights up to e^weight_headroom are accepted, so
/// that small increases, of which there are many, need no rescaling.
inline constexpr int weight_headroom = 6;

/// Multiplies each lane of [dim][panel] by its factor.
template <class A>
[[gnu::always_inline]] inline void scale_lanes(A* output, Index dim, Vector<A> const* factor) {
  using B = Blocking<A>;
  for (Index d = 0; d < dim; ++d)
#pragma GCC unroll 4
    for (int v = 0; v < B::panel_vectors; ++v) {
      A* const place = output + d * B::panel + v * B::lanes;
      (Vector<A>::load(place) * factor[v]).store(place);
    }
}

/// Sets maximum[lane] to the lane's `largest`, which is not below it, where that is larger by more than
/// weight_headroom, and rescales the lane's sum, that of weights with the exponents above. So `maximum` may be up to
/// weight_headroom below the largest logit. Returns true if it raised any; then `factor`, one for each vector of the
/// panel, is set to what rescales other sums of the lanes. The result of a lane does not depend on other lanes.
template <class A>
[[gnu::noinline]] bool raise(Vector<A> const* largest, A* maximum, A* sum, Vector<A>* factor) {
  using V = Vector<A>;
  constexpr int vectors = Blocking<A>::panel_vectors, lanes = Blocking<A>::lanes;
  Lanes<A> increases[vectors];
  bool any_increase = false;
  for (int v = 0; v < vectors; ++v) {
    increases[v] = less(V::of(A(weight_headroom)), largest[v] - V::load(maximum + v * lanes));
    any_increase = any_increase || any(increases[v]);
  }
  if (!any_increase) return false;
  for (int v = 0; v < vectors; ++v) {
    V const before = V::load(maximum + v * lanes), after = select(increases[v], largest[v], before);
    after.store(maximum + v * lanes);
    // An infinite maximum would get NaN whenever that of another lane is raised.
    factor[v] = select(
        increases[v], rescale(before, after) * exponential2(cut_in_base_2(after) - cut_in_base_2(before)), V::of(A(1)));
    (V::load(sum + v * lanes) * factor[v]).store(sum + v * lanes);
  }
  return true;
}

/// Converts the sums of weights with the exponents above to those of weights e^(logit - maximum). Sets `factor`, one
/// for each vector of the panel, to what converts the lanes of an output.
template <class A>
[[gnu::noinline]] void remove_cut(A const* maximum, A* sum, Vector<A>* factor) {
  using V = Vector<A>;
  constexpr int lanes = Blocking<A>::lanes;
  for (int v = 0; v < Blocking<A>::panel_vectors; ++v) {
    factor[v] = exponential2(V::zero() - cut_in_base_2(V::load(maximum + v * lanes)));
    (V::load(sum + v * lanes) * factor[v]).store(sum + v * lanes);
  }
}

/// Factors of dropout for the pairs of a panel and a key block: `scale` for those that are kept, 0 for others. `kept`
/// is null without dropout; the overload for vectors must then not be called. Score row 0 belongs to key `first` of the
/// block.
template <class A>
struct DropoutFactors {
  BitMatrix<A> const* kept = nullptr;
  Index first = 0;
  A scale = A(1);

  [[gnu::always_inline]] Vector<A> apply(Vector<A> weight, Index row, int v) const {
    return select(kept->at(v, first + row), weight * Vector<A>::of(scale), Vector<A>::zero());
  }
  A apply(A weight, Index row, Index lane) const {
    return !kept ? weight : kept->at_lane(lane, first + row) ? weight * scale : A(0);
  }
};

/// Calls for_all(weight) with a function weight(row, v) that multiplies the result of `plain` by the factors.
template <class A, class Weight, class ForAll>
[[gnu::always_inline]] inline void with_dropout(DropoutFactors<A> const& dropout, Weight const& plain,
                                                ForAll&& for_all) {
  if (dropout.kept)
    for_all([&](Index row, int v) __attribute__((always_inline)) { return dropout.apply(plain(row, v), row, v); });
  else
    for_all(plain);
}

/// Function object of add_weights(): the weight of vector v of a row of scores, which it adds to the sum of its lanes.
template <class A, class Exponent>
struct AddedWeight {
  A const* scores;
  Exponent const* exponent;  ///< of each vector of the panel, as are the sums
  Vector<A>* sums;

  [[gnu::always_inline]] Vector<A> operator()(Index row, int v) const {
    Vector<A> const weight =
        exponential2(exponent[v](Vector<A>::load(scores + row * Blocking<A>::panel + v * Vector<A>::lanes)));
    sums[v] = sums[v] + weight;
    return weight;
  }
};

/// Computes weights of scores [rows][panel], see SmallExponent, and adds them to `sum`, through a partial sum, as the
/// rounding error of a sum grows with its length. maximum, sum: one per lane. Calls for_all(weight) once, which must
/// call weight(row, v) once for each key row, in ascending order, and each of the first Vectors vectors v of the panel,
/// for its weight times the factors of dropout.
template <int Vectors, class A, class ForAll>
[[gnu::always_inline]] inline void add_weights(A const* scores, A scale, A const* maximum, A* sum,
                                               DropoutFactors<A> const& dropout, ForAll&& for_all) {
  using V = Vector<A>;
  constexpr int lanes = Blocking<A>::lanes;
  V sums[Vectors];
  with_exponent<A>(
      any_large(maximum), [&]<class Exponent>(std::type_identity<Exponent>) __attribute__((always_inline)) {
        Exponent exponent[Vectors];
        for (int v = 0; v < Vectors; ++v) {
          exponent[v] = Exponent(scale, V::load(maximum + v * lanes));
          sums[v] = V::zero();
        }
        with_dropout(dropout, AddedWeight<A, Exponent>{scores, exponent, sums}, for_all);
      });
  for (int v = 0; v < Vectors; ++v) (V::load(sum + v * lanes) + sums[v]).store(sum + v * lanes);
}

/// Replaces scores by their weights times the factors of dropout, see add_weights().
template <int Vectors, class A>
[[gnu::noinline]] void online_softmax(A* scores, Index rows, A scale, A const* maximum, A* sum,
                                      DropoutFactors<A> const& dropout) {
  constexpr int lanes = Blocking<A>::lanes, panel = Blocking<A>::panel;
  add_weights<Vectors>(
      scores, scale, maximum, sum, dropout, [&](auto weight) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (Index j = 0; j < rows; ++j)
#pragma GCC unroll 4
          for (int v = 0; v < Vectors; ++v) weight(j, v).store(scores + j * panel + v * lanes);
      });
}

/// Rounds element(row, v), vector v < Vectors of a row of a panel, and stores Operand<E>::depth neighbouring rows in each
/// element E. Row 0 is row `lead` of its element. Absent rows are 0. Between rows of elements, calls the parts of
/// `products`.
template <int Vectors, class E, class Element, class Products>
[[gnu::always_inline]] inline void store_joined_rows(Index lead, Index rows, E* to, Element&& element,
                                                     Products& products) {
  using V = Vector<float>;
  using O = Operand<E>;
  constexpr int lanes = V::lanes, panel = Blocking<float>::panel;
  Index j = 0;
  auto const store_some = [&](Index before, Index count) __attribute__((always_inline)) {
    for (int v = 0; v < Vectors; ++v) {
      V joined[O::depth];
      for (Index r = 0; r < O::depth; ++r)
        joined[r] = r < before || r >= before + count ? V::zero() : element(j + r - before, v);
      O::store_rows(joined, to + v * lanes);
    }
    j += count;
    to += panel;
  };
  auto const store_whole = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      V joined[O::depth];
#pragma GCC unroll 4
      for (Index r = 0; r < O::depth; ++r) joined[r] = element(j + r, v);
      O::store_rows(joined, to + v * lanes);
    }
    j += O::depth;
    to += panel;
  };
  if (lead > 0 && rows > 0) store_some(lead, std::min(O::depth - lead, rows));
  if constexpr (Products::parts > 0)
    while (j + Products::parts * O::depth <= rows)
      [&]<int... Part>(std::integer_sequence<int, Part...>) __attribute__((always_inline)) {
        (..., (store_whole(), products.template next<Part>()));
      }
  (std::make_integer_sequence<int, Products::parts>());
  while (j + O::depth <= rows) store_whole();
  if (j < rows) store_some(0, rows - j);
}

/// Like online_softmax(), but writes the weights as joined rows, see store_joined_rows(); the sums are of the unrounded
/// weights.
template <int Vectors, class E, class Products>
[[gnu::noinline]] void online_softmax_to_joined_rows(float const* scores, Index lead, Index rows, float scale,
                                                     float const* maximum, float* sum,
                                                     DropoutFactors<float> const& dropout, E* to, Products& products) {
  add_weights<Vectors>(
      scores, scale, maximum, sum, dropout, [&](auto weight) __attribute__((always_inline)) {
        store_joined_rows<Vectors>(lead, rows, to, weight, products);
      });
}

/// Converts block [rows][panel] to joined rows, see store_joined_rows().
template <class E>
[[gnu::noinline]] void join_rows_of_panel(float const* block, Index rows, E* to) {
  NoProducts none;
  store_joined_rows<Blocking<float>::panel_vectors>(
      0, rows, to,
      [&](Index j, int v) __attribute__((always_inline)) {
        return Vector<float>::load(block + j * Blocking<float>::panel + v * Vector<float>::lanes);
      },
      none);
}

#if defined(ANNULUS_CPU_HAS_PAIRS)
/// Converts `count` numbers, a multiple of two vectors, to pairs, rounded.
[[gnu::noinline]] inline void round_to_pairs(float const* numbers, Index count, BfloatPair* pairs) {
  using V = Vector<float>;
  using O = Operand<BfloatPair>;
  for (Index e = 0; e < count; e += 2 * V::lanes, pairs += V::lanes)
    O::store(O::pairs_of_lanes(V::load(numbers + e), V::load(numbers + e + V::lanes)), pairs);
}

/// Converts block [rows][panel] to pairs of neighbouring lanes, rounded.
inline void join_lanes_of_panel(float const* block, Index rows, BfloatPair* pairs) {
  round_to_pairs(block, rows * Blocking<float>::panel, pairs);
}
#endif

#if defined(ANNULUS_CPU_HAS_QUADS)
/// Converts block [rows][panel] to quads of neighbouring lanes, rounded, in packed groups of rows.
[[gnu::noinline]] inline void join_lanes_of_panel(float const* block, Index rows, BfloatQuad* quads) {
  using V = Vector<float>;
  using O = Operand<BfloatQuad>;
  constexpr Index panel = Blocking<float>::panel, group = PackedGroup<BfloatQuad>::rows;
  for (Index begin = 0; begin < rows; begin += group)
    for (Index lane = 0; lane < panel; lane += O::depth)
      for (Index row = begin; row < begin + group; row += 2, quads += 2) {
        float const* const place = block + row * panel + lane;
        O::store_lanes(V::load(place), V::load(place + panel), quads);
      }
}
#endif

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
