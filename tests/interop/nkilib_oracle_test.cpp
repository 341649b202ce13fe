// The nkilib adapter against the oracle: rings of 1, 2 and 4 ranks, lengths around the 128 partitions, both shardings,
// every combination of layouts, grouped heads, packed documents.

#include <annulus/annulus.hpp>

#include "interop/nkilib_run.hpp"
#include "support/catch.hpp"
#include "support/judge.hpp"

using namespace annulus_test;

namespace {

template <class T>
std::string judged(int ranks, Index s, NkilibCall const& call, NkilibExtents const& extents) {
  RingProblem problem = nkilib_problem(ranks, s, call, extents, static_cast<std::uint64_t>(ranks * 1000 + s));
  round_operands<T>(problem);
  constexpr Bounds bounds = std::is_same_v<T, double> ? double_bounds : float_bounds;
  return judge(problem, run_nkilib<T>(problem, call), bounds).complaint;
}

}  // namespace

TEST_CASE("nkilib: the rows of a rank need not be a multiple of the 128 partitions", "[nkilib][C8]") {
  NkilibExtents const extents{.query_heads = 2, .kv_heads = 1, .head_dim = 3, .value_dim = 3};
  int const ranks = GENERATE(1, 2, 4);
  Index const s = GENERATE(1, 127, 128, 129, 200);
  // A causal call without softmax_scale: the default is 1 / sqrt(d), with and without a mask.
  CHECK(judged<double>(ranks, s, {}, extents) == "");
  CHECK(judged<double>(ranks, s, {.causal = true, .tp_q = true}, extents) == "");
  CHECK(judged<double>(ranks, s, {.causal = true, .striped = true, .tp_k = true}, extents) == "");
}

TEST_CASE("nkilib: tp_q and tp_k in every combination, grouped heads, value_dim unlike head_dim", "[nkilib]") {
  NkilibExtents const extents{.batch = 2, .query_heads = 6, .kv_heads = 2, .head_dim = 5, .value_dim = 4};
  int const ranks = GENERATE(1, 2, 4);
  bool const tp_q = GENERATE(false, true), tp_k = GENERATE(false, true), striped = GENERATE(false, true);
  NkilibCall const call{.causal = true, .striped = striped, .tp_q = tp_q, .tp_k = tp_k};
  CHECK(judged<double>(ranks, 13, call, extents) == "");
  CHECK(judged<float>(ranks, 13, call, extents) == "");
}

TEST_CASE("nkilib: softmax_scale is applied with and without a causal mask", "[nkilib][C6][C7]") {
  double const scale = GENERATE(0.0, -0.4, 1.0, 0.11);
  NkilibExtents const extents{.query_heads = 2, .kv_heads = 2, .head_dim = 8, .value_dim = 8, .softmax_scale = scale};
  CHECK(judged<double>(3, 9, {}, extents) == "");
  CHECK(judged<double>(3, 9, {.causal = true}, extents) == "");
  CHECK(judged<double>(3, 9, {.causal = true, .striped = true}, extents) == "");
}

TEST_CASE("nkilib: packed documents agree with the oracle, with and without padding", "[nkilib][C4][C26]") {
  NkilibExtents const extents{.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 4};
  int const ranks = GENERATE(1, 2, 4);
  bool const causal = GENERATE(false, true);
  Index const n = ranks;
  NkilibCall call{.causal = causal, .striped = true};

  SECTION("documents that fill the sequence") {
    call.documents = {{0, 7 * n}, {7 * n, 8 * n}, {8 * n, 129 * n}, {129 * n, 131 * n}};
    CHECK(judged<double>(ranks, 131, call, extents) == "");
  }
  SECTION("one document is no restriction") {
    call.documents = {{0, 20 * n}};
    CHECK(judged<double>(ranks, 20, call, extents) == "");
  }
  SECTION("padding before, between and after documents: masked rows") {
    call.documents = {{2 * n, 9 * n}, {12 * n, 30 * n}};
    CHECK(judged<double>(ranks, 33, call, extents) == "");
    CHECK(judged<float>(ranks, 33, call, extents) == "");
  }
}

TEST_CASE("nkilib: tiny shards on many ranks have finite gradients", "[nkilib][C5]") {
  NkilibExtents const extents{.query_heads = 1, .kv_heads = 1, .head_dim = 4, .value_dim = 4};
  Index const s = GENERATE(1, 2);
  CHECK(judged<double>(32, s, {.causal = true}, extents) == "");
  CHECK(judged<double>(32, s, {.causal = true, .striped = true}, extents) == "");
}
