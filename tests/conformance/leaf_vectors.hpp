#pragma once
// Test vectors of the order of sums of reproducible calls, for any backend: the partial results of leaves are joined in
// one binary tree, 0 and 1, 2 and 3, then these pairs, and so on. All logits are 0, so weights are 1, and values differ
// from leaf to leaf alone: a leaf's sum is exact in any order, and another order of joins gives another result.

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/tensor/eigen.hpp"

namespace annulus_test {

using annulus::Index;

/// The values of leaves of two keys are {1, 0} * (large * s + small), where s = 2^24 in float and 2^53 in double: in
/// sums, s + 1 rounds to s. The output of a query that sees all keys is `sum` / number of keys.
struct LeafVector {
  struct Value {
    double large, small;
  };
  std::vector<Value> leaves;
  Value sum;
};

inline std::vector<LeafVector> leaf_vectors() {
  return {
      {{{1, 0}, {0, 1}, {0, 1}, {-1, 0}}, {0, 1}},                          // one by one: 0
      {{{1, 0}, {0, 1}, {0, 1}, {-1, 0}, {0, 1}}, {0, 2}},                  // the fifth leaf joins the other four
      {{{0, 1}, {1, 0}, {0, 1}, {0, 1}, {-1, 0}}, {0, 2}},                  // (1 + s) + (1 + 1) rounds to s + 2
      {{{0, 1}, {1, 0}, {0, 1}, {-1, 0}, {0, 1}, {0, 1}}, {0, 3}},          // the last pair joins the other four leaves
      {{{1, 0}, {0, 1}, {0, 1}, {0, 1}, {-1, 0}, {0, 1}, {0, 1}}, {0, 4}},  // the last leaf joins the last pair
  };
}

/// Outputs of the query at the last position, times the number of keys: by a training pass, and by decode.
template <class T, annulus::Backend B>
std::array<double, 2> sums_of_leaves(B backend, LeafVector const& vector) {
  using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;
  double const s = 2 / static_cast<double>(std::numeric_limits<T>::epsilon());
  auto const keys = 2 * std::ssize(vector.leaves);
  Tensor q(1, keys, 1, 4), k(q), v(q);
  q.setZero(), k.setZero(), v.setZero();
  for (Index i = 0; i < keys; i += 2)
    for (Index d = 0; d < 4; ++d) {
      auto const [high, low] = vector.leaves[static_cast<std::size_t>(i / 2)];
      v(0, i, 0, d) = static_cast<T>(high * s + low);
    }
  annulus::SelfRing alone;
  annulus::RingAttention attention(alone, backend,
                                   {.mask = annulus::causal(), .reproducible = true, .reproducible_leaf = 2});
  auto const trained = attention.forward(q, k, v).output;
  annulus::KvCache<T, B> cache(alone, backend, {.head_dim = 4, .value_dim = 4, .pages = keys, .page_rows = 1});
  annulus::CachedAttention cached(alone, backend,
                                  {.mask = annulus::causal(), .reproducible = true, .reproducible_leaf = 2});
  std::array const sequence{cache.create()};
  cached.append(cache, sequence, k, v);
  Tensor row(1, 1, 1, 4);
  row.setZero();
  auto const decoded = cached.decode(cache, sequence, row).output;
  auto const count = static_cast<double>(keys);
  return {count * static_cast<double>(trained(0, keys - 1, 0, 3)), count * static_cast<double>(decoded(0, 0, 0, 3))};
}

/// What a backend gets wrong; empty if nothing.
template <class T, annulus::Backend B>
std::string wrong_leaf_vectors(B const& backend) {
  std::string wrong;
  auto const vectors = leaf_vectors();
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    double const s = 2 / static_cast<double>(std::numeric_limits<T>::epsilon());
    double const sum = vectors[i].sum.large * s + vectors[i].sum.small;
    for (double const found : sums_of_leaves<T>(backend, vectors[i]))
      if (!(std::abs(found - sum) < 0.01))
        wrong += "vector " + std::to_string(i) + ": " + std::to_string(found) + ", not " + std::to_string(sum) + "; ";
  }
  return wrong;
}

}  // namespace annulus_test
