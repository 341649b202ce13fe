// Reproducible calls on a cache: the bits of training in every history.

#include <string>
#include <vector>

#include "attention/cache/serving_history.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Cases of every kind of mask, sharding and page.
std::vector<ServingCase> serving_cases(Index leaf) {
  std::vector<ServingCase> cases;
  auto const add = [&](CachedOptions options, Index page_rows, bool sinks = false) {
    options.reproducible = true;
    options.reproducible_leaf = leaf;
    ServingCase one{.options = options, .sinks = sinks, .seed = static_cast<std::uint32_t>(cases.size() + 1)};
    one.shape.page_rows = page_rows;
    one.shape.pages = 25 * leaf / page_rows;
    one.longest = 90 * leaf / 16;
    one.longest_chunk = 40 * leaf / 16;
    one.shape.reproducible_leaf = leaf;
    cases.push_back(one);
  };
  add({.mask = causal()}, 4);
  add({.mask = causal(), .checked = true}, 16, true);
  add({}, 1);
  add({.mask = sliding_window(6, 1), .sharding = Striped{}}, 8, true);
  add({.mask = {.causal = true, .window = {.left = 25}, .sink_tokens = 3}, .sharding = Zigzag{}}, 2);
  add({.mask = {.causal = true, .chunk = 9}, .softmax_scale = -0.7, .logit_softcap = 1.5}, 32, true);
  add({.mask = causal(), .dropout = {.probability = 0.3, .seed = 11}, .sharding = Zigzag{}}, 4, true);
  add({.mask = causal()}, 8);
  cases.back().bias = true;
  std::vector<bool> blocks(400 * 300);
  for (std::size_t block = 0; block < blocks.size(); ++block) blocks[block] = block % 300 % 7 != block / 300 % 4;
  add({.mask = causal(), .block_mask = {3 * leaf / 16, 4 * leaf / 16, 300, blocks}}, 4);
  add({.mask = causal(), .sharding = Zigzag{}}, 4, true);
  cases.back().shape.document_ids = true;
  add({.mask = {.window = {.left = 20}}, .checked = true}, 16);
  cases.back().shape.document_ids = true;
  return cases;
}

/// Positions of a leaf, and the extents of heads.
struct Sizes {
  Index leaf = 16, head_dim = 6, value_dim = 5;
  int calls = 40;
};

template <class T, class B>
void check_histories(int ranks, B const& backend, Sizes const& sizes = {}) {
  for (ServingCase one : serving_cases(sizes.leaf)) {
    one.shape.head_dim = sizes.head_dim;
    one.shape.value_dim = sizes.value_dim;
    one.calls = sizes.calls;
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
  for (int ranks : {1, 2, 3, 4, 8}) check_histories<TestType>(ranks, CpuBackend{.threads = 1});
}

TEMPLATE_TEST_CASE("serving with leaves of several key blocks has the bits of training", "[cache][reproducible]", float,
                   Eigen::bfloat16) {
  for (int ranks : {1, 3})
    check_histories<TestType>(ranks, CpuBackend{}, {.leaf = 288, .head_dim = 40, .value_dim = 72, .calls = 14});
}

TEMPLATE_TEST_CASE("serving by the reference backend has the bits of its training", "[cache][reproducible]", float,
                   Eigen::bfloat16) {
  for (int ranks : {1, 3}) check_histories<TestType>(ranks, ReferenceBackend{});
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
  CHECK_THROWS_WITH(run_ring(2,
                             [](SimulatedRing& ring) {
                               CpuBackend backend;
                               KvCache<float>(ring, backend, {.page_rows = 6, .reproducible_leaf = 8});
                             }),
                    ContainsSubstring("a multiple of them or a divisor"));
}
