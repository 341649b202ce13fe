#pragma once
// The rules of a step for one pair of query and key: whether it is visible, its logit, and whether dropout keeps it. The
// device's counterpart of Step::find_visible.

#include "annulus/backend/cuda/complete/arguments.hpp"
#include "annulus/backend/cuda/elements.cuh"
#include "annulus/numerics/dropout.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cuda::detail {

/// True if other kernels have computed the step.
template <class T>
__device__ inline bool is_done(StepPairs<T> const& step) {
  return step.done != nullptr && *step.done != 0;
}

/// Rows of one batch item and query head.
struct HeadPlace {
  Index batch, head, kv_head;
};

/// A logit before and after the bias.
template <class A>
struct PairLogit {
  A capped, logit;
};

template <class T, class P>
class PairRules {
 public:
  using A = SumOfElement<T>;

  __device__ PairRules(StepPairs<T> const& step, P const& predicate)
      : step_(step),
        predicate_(predicate),
        rule_{static_cast<A>(step.softmax_scale), static_cast<A>(step.logit_softcap)} {}

  /// True if all rules let the query see the key. tests_positions: false if the rules by position let it.
  __device__ bool visible(HeadPlace const& place, Index query, Index key, bool tests_positions) const {
    if (query >= step_.queries || key >= step_.keys) return false;
    if (step_.query_documents && !annulus::detail::same_document(step_.query_documents(place.batch, query),
                                                                 step_.key_documents(place.batch, key)))
      return false;
    Index const q = step_.query_positions[query], k = step_.key_positions[key];
    if (step_.boolean_mask && !step_.boolean_mask(place.batch, place.head, query, k)) return false;
    if (tests_positions && !(step_.mask.visible(q, k) && step_.blocks(q, k))) return false;
    return static_cast<bool>(predicate_(step_.first_batch + place.batch, step_.first_head + place.head, q, k));
  }

  /// The logit of a pair, given the product of query and key.
  __device__ PairLogit<A> logit(HeadPlace const& place, Index query, Index key, A product) const {
    A const capped = rounded(isfinite(product) ? rule_(product) : rule_.cap(scaled_product(place, query, key)));
    if (!step_.bias) return {capped, capped};
    Index const k = step_.key_positions[key];
    return {capped, capped + widened<A>(step_.bias(place.batch, place.head, query, k))};
  }

  /// Factor of dropout on the weight of a pair.
  __device__ A kept(HeadPlace const& place, Index query, Index key) const {
    if (!step_.dropout.active()) return A(1);
    bool const keeps = step_.dropout.keeps(step_.first_batch + place.batch, step_.first_head + place.head,
                                           step_.query_positions[query], step_.key_positions[key]);
    return keeps ? static_cast<A>(step_.dropout.keep_scale()) : A(0);
  }

  __device__ LogitRule<A> const& rule() const { return rule_; }

  /// True if a step has no rule but those by position and the scale, so that the logits of untested blocks are plain.
  __device__ static bool is_plain(StepPairs<T> const& step) {
    return std::is_same_v<P, EveryPair> && !step.query_documents && !step.boolean_mask && !step.bias &&
           !(step.logit_softcap > 0) && !step.dropout.active();
  }

 private:
  /// The product of the scaled query and the key, for products that overflow.
  __device__ A scaled_product(HeadPlace const& place, Index query, Index key) const {
    return detail::scaled_product(&step_.q(place.batch, query, place.head, 0), step_.q.strides[3],
                                  &step_.k(place.batch, key, place.kv_head, 0), step_.k.strides[3], step_.head_dim,
                                  rule_.scale);
  }

  StepPairs<T> const& step_;
  P const& predicate_;
  LogitRule<A> rule_;
};

/// Weight of a pair in the backward pass, and the gradient of its logit.
template <class A>
struct PairGradient {
  A kept_weight = A(0);  ///< factor of dout in dv
  A dlogit = A(0);       ///< gradient of the logit, that of the bias
  A dproduct = A(0);     ///< gradient of the product of query and key
};

/// Log-sum-exp of a query row, with its remainder, and its delta.
template <class A>
struct KnownRow {
  A lse = empty_row<A>, remainder = A(0), delta = A(0);

  template <class T>
  __device__ static KnownRow of(KnownResults<T, A> const& known, HeadPlace const& place, Index query, Index queries) {
    if (query >= queries) return {};
    Index const b = place.batch, h = place.head;
    return {known.lse(b, h, query), known.lse_remainder ? known.lse_remainder(b, h, query) : A(0),
            known.delta(b, h, query)};
  }
};

/// The gradient of a visible pair, given the products of its query and key, and of its dout and value.
template <class T, class P, class A = SumOfElement<T>>
__device__ PairGradient<A> pair_gradient(PairRules<T, P> const& rules, HeadPlace const& place, Index query, Index key,
                                         KnownRow<A> const& row, A product, A dweight) {
  PairGradient<A> gradient;
  PairLogit<A> const pair = rules.logit(place, query, key, product);
  if (pair.logit == empty_row<A>) return gradient;
  A const weight = probability(pair.logit, row.lse, row.remainder), kept = rules.kept(place, query, key);
  gradient.kept_weight = kept * weight;
  gradient.dlogit = weight * (kept * dweight - row.delta);
  gradient.dproduct = gradient.dlogit * rules.rule().slope(pair.capped);
  return gradient;
}

}  // namespace annulus::cuda::detail
