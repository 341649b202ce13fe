// Steps with few query rows, whose keys and values are read where they are.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/cpu/decode/decode_fold.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/in_place_backend.hpp"
#include "support/judge.hpp"
#include "support/larger_error.hpp"
#include "support/random_ring_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;

namespace {

/// Keys of a block and the least number of keys of a piece; see KeySplits.
constexpr std::int64_t decode_block = 128, piece = 256;

template <class T, class Placement = HostPlacement>
RingResult solve(RingProblem const& problem, int threads = 1) {
  return whole_result<T, Placement>(problem, InPlaceBackend{{.threads = threads}});
}

/// Complaint about the results for contiguous and for strided operands.
template <class T>
std::string complaint_of_decode(RingProblem problem, int threads = 1) {
  if (problem.query_lengths.empty()) settle(problem);
  round_operands<T>(problem);
  auto const judged = [&](RingResult const& result) {
    if constexpr (sizeof(T) == 2) {
      ThreeWayJudge<T> three_way;
      return three_way.complaint(problem, result);
    } else {
      return judge(problem, result, std::is_same_v<T, double> ? double_bounds : float_bounds).complaint;
    }
  };
  return judged(solve<T>(problem, threads)) + judged(solve<T, TransposedPlacement>(problem, threads));
}

struct Heads {
  std::int64_t query, kv;
};
constexpr Heads all_heads[] = {{1, 1}, {8, 1}, {8, 8}, {6, 2}};

}  // namespace

TEMPLATE_TEST_CASE("decode: query rows, heads and lengths around blocks and pieces", "[slow][cpu]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  for (Heads heads : all_heads)
    for (std::int64_t queries : {1, 2, 3, 5, 8, 16, 17})
      for (std::int64_t keys :
           {std::int64_t{1}, std::int64_t{7}, decode_block - 1, piece - 1, piece, piece + 1, 3 * piece + 9}) {
        if (queries > 3 && heads.query == 8) continue;
        INFO(queries << " queries, " << keys << " keys, " << heads.query << ":" << heads.kv << " heads");
        CHECK(complaint_of_decode<TestType>(small_ring_problem({.query_heads = heads.query,
                                                                .kv_heads = heads.kv,
                                                                .query_length = queries,
                                                                .key_length = keys,
                                                                .head_dim = 32,
                                                                .value_dim = 16},
                                                               1)) == "");
      }
}

TEMPLATE_TEST_CASE("decode: head_dim and value_dim around whole vectors", "[slow][cpu]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  for (std::int64_t dim : {1, 15, 16, 17, 64, 80, 128, 272})
    for (std::int64_t value_dim : {std::int64_t{1}, std::int64_t{17}, std::int64_t{32}, dim})
      for (Heads heads : all_heads) {
        INFO("head_dim " << dim << ", value_dim " << value_dim << ", " << heads.query << ":" << heads.kv << " heads");
        // The rounding error of a few values of dq would be random.
        CHECK(complaint_of_decode<TestType>(small_ring_problem({.batch = dim == 1 ? 16 : 2,
                                                                .query_heads = heads.query,
                                                                .kv_heads = heads.kv,
                                                                .query_length = 1,
                                                                .key_length = decode_block + 5,
                                                                .head_dim = dim,
                                                                .value_dim = value_dim},
                                                               1)) == "");
      }
}

TEMPLATE_TEST_CASE("decode: all numbers of query rows of a kv head, odd and even numbers of vectors and keys",
                   "[slow][cpu]", float, double, Eigen::half, Eigen::bfloat16) {
  for (std::int64_t rows = 1; rows <= 17; ++rows)
    for (auto [dim, value_dim] : {std::pair{std::int64_t{80}, std::int64_t{112}}, {32, 128}, {33, 7}})
      for (bool grouped : {false, true})
        for (std::int64_t kv_heads : {1, 2}) {
          INFO(rows << " rows, " << (grouped ? "query heads, " : "queries, ") << kv_heads << " kv heads, head_dim "
                    << dim << ", value_dim " << value_dim);
          CHECK(complaint_of_decode<TestType>(small_ring_problem({.query_heads = grouped ? rows * kv_heads : kv_heads,
                                                                  .kv_heads = kv_heads,
                                                                  .query_length = grouped ? 1 : rows,
                                                                  .key_length = decode_block + 2 * rows + 5,
                                                                  .head_dim = dim,
                                                                  .value_dim = value_dim},
                                                                 1)) == "");
        }
}

TEMPLATE_TEST_CASE("decode: every option, on one rank and on three", "[cpu]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  std::vector<ProblemChange> options{
      {"nothing", [](RingProblem&) {}},
      {"causal", [](RingProblem& p) { p.dense.causal = true, p.dense.query_offset = 297; }},
      {"window",
       [](RingProblem& p) { p.dense.window_left = 70, p.dense.window_right = 3, p.dense.query_offset = 120; }},
      {"sink tokens",
       [](RingProblem& p) {
         p.dense.causal = true, p.dense.window_left = 20, p.dense.sink_tokens = 5, p.dense.query_offset = 290;
       }},
      {"chunk", [](RingProblem& p) { p.dense.chunk = 100, p.dense.query_offset = 198; }},
      {"nothing visible", [](RingProblem& p) { p.dense.causal = true, p.dense.query_offset = -40; }},
      {"documents",
       [](RingProblem& p) {
         p.dense.query_documents = std::vector<int>{2, 3, 1};
         p.dense.key_documents = documents_of_lengths(1, {130, 90, 80});
       }},
      {"scattered documents",
       [](RingProblem& p) {
         p.dense.query_documents = std::vector<int>{2, 3, 1};
         p.dense.key_documents = documents_of_lengths(1, {130, 90, 80});
         for (std::size_t i = 0; i < 300; i += 7) (*p.dense.key_documents)[i] = 3;
       }},
      {"negative scale", [](RingProblem& p) { p.dense.softmax_scale = -0.3; }},
  };
  options.insert(options.end(), logit_options.begin(), logit_options.end());
  for (auto const& [name, change] : options)
    for (auto const& [ranks, sharding] : {std::pair{1, annulus::Sharding(annulus::Contiguous{})},
                                          {3, annulus::Sharding(annulus::Contiguous{})},
                                          {3, annulus::Sharding(annulus::Zigzag{})},
                                          {3, annulus::Sharding(annulus::Striped{})}}) {
      RingProblem problem = small_ring_problem(
          {.query_heads = 4, .kv_heads = 2, .query_length = 3, .key_length = 300, .head_dim = 32, .value_dim = 16},
          ranks, sharding);
      change(problem);
      INFO(name << " on " << ranks << " ranks");
      CHECK(complaint_of_decode<TestType>(problem, 2) == "");
    }
}

TEMPLATE_TEST_CASE("decode: NaN in hidden keys, and infinite values of weight 0, do not reach the result", "[cpu]",
                   float, double, Eigen::half, Eigen::bfloat16) {
  constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN(),
                   infinite = std::numeric_limits<double>::infinity();
  constexpr std::int64_t keys = 400, dim = 32, heads = 2;
  for (std::int64_t queries : {1, 3}) {
    RingProblem problem = small_ring_problem(
        {.query_heads = 4, .kv_heads = heads, .query_length = queries, .key_length = keys, .head_dim = dim}, 1);
    problem.dense.causal = true;
    problem.dense.query_offset = 299;
    settle(problem);
    round_operands<TestType>(problem);
    RingResult const clean = solve<TestType>(problem);
    std::vector<double> const k = problem.dense.k, v = problem.dense.v;
    // The last query sees keys below 299 + queries.
    for (std::int64_t j = 299 + queries; j < keys; ++j)
      for (std::int64_t d = 0; d < heads * dim; ++d) {
        problem.dense.k[static_cast<std::size_t>(j * heads * dim + d)] = not_a_number;
        problem.dense.v[static_cast<std::size_t>(j * heads * dim + d)] = d % 2 == 0 ? not_a_number : infinite;
      }
    for (int threads : {1, 2}) {
      RingResult const poisoned = solve<TestType>(problem, threads);
      CHECK(poisoned.output == clean.output);
      CHECK(poisoned.lse == clean.lse);
    }
    // Key 299 is seen by all queries, key 300 by the second and third.
    problem.dense.k = k, problem.dense.v = v;
    for (std::int64_t seen : {299, 300}) {
      if (seen == 300 && queries == 1) continue;
      problem.dense.v = v;
      problem.dense.v[static_cast<std::size_t>(seen * heads * dim + 3)] = infinite;
      RingResult const result = solve<TestType>(problem);
      for (std::size_t e = 0; e < result.output.size(); ++e) {
        auto const query = static_cast<std::int64_t>(e) / (4 * dim), head = static_cast<std::int64_t>(e) / dim % 4;
        bool const hit = head < 2 && static_cast<std::int64_t>(e) % dim == 3 && seen <= 299 + query;
        CHECK(std::isfinite(result.output[e]) == !hit);
        if (head >= 2 || seen > 299 + query) CHECK(result.output[e] == clean.output[e]);
      }
    }
  }
}

TEST_CASE("decode: an infinite value whose weight vanishes", "[cpu]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  for (annulus::Index heads : {1, 4}) {
    Tensor q(1, 1, heads, 16), k(1, 300, 1, 16), v(1, 300, 1, 16);
    q.setConstant(1), k.setConstant(0), v.setConstant(2);
    // The logit of one key is below the others' by 200, so that its weight is 0 in float.
    for (annulus::Index d = 0; d < 16; ++d)
      k(0, 70, 0, d) = -50, v(0, 70, 0, d) = std::numeric_limits<float>::infinity();
    annulus::SelfRing ring;
    InPlaceBackend backend{{.threads = 1}};
    annulus::RingAttention attention(ring, backend, {});
    auto const forward = attention.forward(q, k, v);
    for (annulus::Index h = 0; h < heads; ++h)
      for (annulus::Index d = 0; d < 16; ++d) CHECK(forward.output(0, 0, h, d) == 2);
  }
}

TEMPLATE_TEST_CASE("decode: results do not depend on the number of threads or on strides, to the bit", "[cpu]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  for (Heads heads : all_heads)
    for (int ranks : {1, 2}) {
      RingProblem problem = small_ring_problem({.batch = 2,
                                                .query_heads = heads.query,
                                                .kv_heads = heads.kv,
                                                .query_length = 2,
                                                .key_length = 5 * piece + 3,
                                                .head_dim = 64},
                                               ranks);
      settle(problem);
      round_operands<TestType>(problem);
      RingResult const alone = solve<TestType>(problem);
      for (int threads : {1, 2, 5}) CHECK(same_bits(solve<TestType>(problem, threads), alone));
      RingResult const strided = solve<TestType, TransposedPlacement>(problem, 2);
      CHECK(strided.output == alone.output);
      CHECK(strided.lse == alone.lse);
    }
}

TEMPLATE_TEST_CASE("decode: callers with and without lse_remainder get the same bits", "[cpu]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  using annulus::Index;
  using Tensor = Eigen::Tensor<TestType, 4, Eigen::RowMajor>;
  using Lse = Eigen::Tensor<annulus::Accumulator<TestType>, 3, Eigen::RowMajor>;
  constexpr Index dim = 64;
  for (auto [heads, queries] : {std::pair{Heads{1, 1}, Index{2}},
                                {Heads{8, 1}, 1},
                                {Heads{8, 1}, 2},
                                {Heads{18, 2}, 1},
                                {Heads{8, 8}, 2},
                                {Heads{6, 2}, 2}}) {
    Index const least = annulus::cpu::detail::KeySplits::least_keys(queries * heads.query / heads.kv);
    for (Index keys : {Index{least - 1}, Index{least}, Index{least + 1}, Index{2 * least + 70}}) {
      INFO(queries << " queries, " << keys << " keys, " << heads.query << ":" << heads.kv << " heads");
      Tensor q(1, queries, heads.query, dim), k(1, keys, heads.kv, dim), v(1, keys, heads.kv, dim),
          output(q.dimensions()), trained(q.dimensions());
      for (Tensor* x : {&q, &k, &v}) x->setRandom();
      Lse lse(1, heads.query, queries), trained_lse(lse.dimensions()), remainder(lse.dimensions());
      annulus::SelfRing ring;
      annulus::CpuBackend backend{.threads = 2};
      annulus::RingAttention attention(ring, backend, {.mask = annulus::causal(), .query_offset = keys - 3});
      attention.forward_into(q, k, v, output, lse);
      attention.forward_into(q, k, v, trained, trained_lse, {}, remainder);
      CHECK(std::equal(lse.data(), lse.data() + lse.size(), trained_lse.data()));
      CHECK(std::equal(output.data(), output.data() + output.size(), trained.data()));
    }
  }
}
