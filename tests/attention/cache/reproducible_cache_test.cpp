// Reproducible calls on a cache: the bits of training in every history.

#include <string>
#include <vector>

#include "attention/cache/serving_history.hpp"
#include "conformance/leaf_vectors.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

template <class T, class B>
void check_histories(int ranks, B const& backend, ServingSizes const& sizes = {}) {
  for (ServingCase const& one : serving_cases(sizes)) {
    CAPTURE(ranks, one.seed);
    auto const complaints = run_ring(ranks, [&](SimulatedRing& ring) {
      B own = backend;
      ServingHistory<T, SimulatedRing, B> history(ring, own, one);
      return history.run();
    });
    for (std::string const& complaint : complaints) CHECK(complaint == "");
  }
}

}  // namespace

TEMPLATE_TEST_CASE("serving has the bits of training on any number of ranks", "[cache][reproducible]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  for (int ranks : {1, 3, 8}) check_histories<TestType>(ranks, CpuBackend{.threads = 1});
}

TEMPLATE_TEST_CASE("elements and sizes of leaves and pages may be anything", "[cache][reproducible]", float,
                   Eigen::bfloat16) {
  for (int ranks : {1, 3}) check_histories<TestType>(ranks, CpuBackend{.threads = 1}, {.special = true});
  for (Index leaf : {1, 5, 16})
    check_histories<TestType>(1, CpuBackend{.threads = 1}, {.leaf = leaf, .any_pages = true, .special = true});
  check_histories<TestType>(1, ReferenceBackend{}, {.leaf = 5, .any_pages = true, .special = true});
}

// 3,080 histories.
TEMPLATE_TEST_CASE("serving has the bits of training in thousands of histories", "[slow][cache][reproducible]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  for (std::uint32_t seed = 1; seed <= 14; ++seed) {
    Index const dim = 1 + 7 * Index{seed} % 41;
    ServingSizes const sizes{
        .leaf = seed % 3 == 0 ? 32 : 16, .head_dim = dim, .value_dim = 42 - dim, .calls = 30, .seed = seed};
    for (int ranks : {1, 2, 3, 5, 8}) check_histories<TestType>(ranks, CpuBackend{.threads = 1}, sizes);
  }
}

TEMPLATE_TEST_CASE("serving with leaves of several key blocks has the bits of training", "[slow][cache][reproducible]",
                   float, Eigen::bfloat16) {
  for (int ranks : {1, 3})
    check_histories<TestType>(ranks, CpuBackend{}, {.leaf = 288, .head_dim = 40, .value_dim = 72, .calls = 14});
}

TEMPLATE_TEST_CASE("serving by the reference backend has the bits of its training", "[cache][reproducible]", float,
                   Eigen::bfloat16) {
  for (int ranks : {1, 3}) check_histories<TestType>(ranks, ReferenceBackend{});
}

TEMPLATE_TEST_CASE("leaves are joined in the order of the tree", "[cache][reproducible]", float, double) {
  CHECK(wrong_leaf_vectors<TestType>(CpuBackend{}) == "");
  CHECK(wrong_leaf_vectors<TestType>(ReferenceBackend{}) == "");
}

TEST_CASE("a reproducible call refuses what cuts leaves or has another order", "[cache][reproducible]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  auto const decode = [](CachedOptions const& options, Index of_cache, int ranks) {
    return run_ring(ranks, [&](SimulatedRing& ring) -> std::string {
      CpuBackend backend;
      KvCache<float> cache(ring, backend, {.pages = 4, .page_rows = 4, .reproducible_leaf = of_cache});
      CachedAttention attention(ring, backend, options);
      std::array const sequences{cache.create()};
      Tensor x(1, 1, 1, 1);
      x.setConstant(1);
      try {
        attention.decode(cache, sequences, x, x, x);
      } catch (UnsupportedError const& error) {
        return error.what();
      }
      return "";
    })[0];
  };
  CHECK(decode({.reproducible = true, .reproducible_leaf = 8}, 0, 1) == "");
  CHECK(decode({.reproducible = true, .reproducible_leaf = 8}, 8, 2) == "");
  CHECK(decode({.reproducible = true, .reproducible_leaf = 8}, 2, 1) == "");
  CHECK_THAT(decode({.reproducible = true, .reproducible_leaf = 8}, 0, 2),
             ContainsSubstring("the cache was made with CacheShape::reproducible_leaf 0"));
  CHECK_THAT(decode({.reproducible = true, .reproducible_leaf = 8}, 16, 2), ContainsSubstring("reproducible_leaf 16"));
  CHECK_THAT(decode({.reproducible = true, .reproducible_leaf = 0}, 8, 2), ContainsSubstring("1 or more positions"));
  CHECK_THAT(decode({.reproducible = true, .reproducible_leaf = 8, .merge = MergeMethod::tree}, 8, 2),
             ContainsSubstring("accepted: automatic, gather"));
  SelfRing alone;
  CpuBackend of_one;
  KvCache<float> cache(alone, of_one, {});
  CachedAttention attention(alone, of_one);
  std::array const sequences{cache.create()};
  Tensor x(1, 1, 1, 1);
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, 1, 1), remainder(1, 1, 2);
  CHECK_THROWS_WITH(attention.decode_into(cache, sequences, x, x, lse, {}, remainder),
                    ContainsSubstring("lse_remainder"));
  CHECK_THROWS_WITH(run_ring(2,
                             [](SimulatedRing& ring) {
                               CpuBackend backend;
                               KvCache<float>(ring, backend, {.page_rows = 6, .reproducible_leaf = 8});
                             }),
                    ContainsSubstring("a multiple of them or a divisor"));
}
