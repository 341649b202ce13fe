// Lengths, dimensions and masks at the edges of the blocks and panels of the CPU backend.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/cpu/panel/blocking.hpp>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;

namespace {

constexpr std::int64_t block = annulus::cpu::detail::Blocking<float>::key_block;
/// Queries per panel with vectors of 4 floats (8, on NEON 16), of 8 floats (24) and of 16 floats (32); and the largest.
constexpr std::int64_t panels[] = {8, 16, 24, 32}, panel = 32;
static_assert(std::ranges::find(panels, annulus::cpu::detail::Blocking<float>::panel) != std::end(panels));

template <class T>
std::string complaint_of(RingProblem problem, int threads = 1) {
  settle(problem);
  round_operands<T>(problem);
  auto const results = results_of_ranks<T>(problem, annulus::CpuBackend{.threads = threads});
  return judge(problem, assemble(problem, results), std::is_same_v<T, double> ? double_bounds : float_bounds).complaint;
}

std::set<std::int64_t> query_counts() {
  std::set<std::int64_t> counts{1};
  for (std::int64_t of_level : panels) counts.insert({of_level - 1, of_level, of_level + 1, 2 * of_level + 5});
  return counts;
}

}  // namespace

TEST_CASE("keys and queries of every length around a block and a panel", "[cpu]") {
  for (std::int64_t keys :
       {std::int64_t{1}, std::int64_t{7}, std::int64_t{9}, block - 1, block, block + 1, 2 * block + 9})
    for (std::int64_t queries : query_counts()) {
      RingProblem const problem = small_ring_problem(
          {.query_heads = 1, .query_length = queries, .key_length = keys, .head_dim = 16, .value_dim = 9}, 1);
      INFO(queries << " queries, " << keys << " keys");
      CHECK(complaint_of<float>(problem) == "");
    }
}

TEST_CASE("head_dim and value_dim around multiples of the vector width", "[cpu]") {
  for (std::int64_t dim :
       {1, 7, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 80, 96, 112, 128, 129, 200, 256, 257})
    for (bool swapped : {false, true}) {
      RingProblem problem = small_ring_problem({.query_heads = 1,
                                                .query_length = 2 * panel + 3,
                                                .key_length = block + 11,
                                                .head_dim = swapped ? 24 : dim,
                                                .value_dim = swapped ? dim : 24},
                                               1);
      problem.dense.causal = true;
      problem.dense.query_offset = block - 2 * panel;
      INFO("head_dim " << problem.dense.head_dim << ", value_dim " << problem.dense.value_dim);
      CHECK(complaint_of<float>(problem) == "");
      CHECK(complaint_of<double>(problem) == "");
    }
}

TEST_CASE("every option across block edges, on one rank and on two", "[cpu]") {
  std::vector<ProblemChange> options{
      {"nothing", [](RingProblem&) {}},
      {"causal", [](RingProblem& p) { p.dense.causal = true; }},
      {"window", [](RingProblem& p) { p.dense.window_left = 70, p.dense.window_right = 3; }},
      {"sink tokens", [](RingProblem& p) { p.dense.causal = true, p.dense.window_left = 20, p.dense.sink_tokens = 5; }},
      {"chunk", [](RingProblem& p) { p.dense.chunk = 100; }},
      {"causal with offset", [](RingProblem& p) { p.dense.causal = true, p.dense.query_offset = -40; }},
      {"documents",
       [](RingProblem& p) {
         give_documents(p, documents_of_lengths(1, {100, 1, 128, 31, 40}));
       }},
      {"causal documents",
       [](RingProblem& p) {
         p.dense.causal = true, give_documents(p, documents_of_lengths(1, {130, 90, 80}));
       }},
  };
  options.insert(options.end(), logit_options.begin(), logit_options.end());
  for (auto const& [name, change] : options)
    for (auto const& [ranks, sharding] : {std::pair{1, annulus::Sharding(annulus::Contiguous{})},
                                          {2, annulus::Sharding(annulus::Zigzag{})},
                                          {2, annulus::Sharding(annulus::Striped{})}}) {
      RingProblem problem = small_ring_problem(
          {.query_heads = 4, .kv_heads = 2, .query_length = 300, .head_dim = 12, .value_dim = 20}, ranks, sharding);
      change(problem);
      INFO(name << " on " << ranks << " ranks");
      CHECK(complaint_of<float>(problem, 2) == "");
    }
}

TEST_CASE("NaN and infinity reach the rows that see them, and no others", "[cpu]") {
  constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN(),
                   infinite = std::numeric_limits<double>::infinity();
  constexpr std::int64_t length = 200, dim = 8, bad = 150;
  for (double poison : {not_a_number, infinite})
    for (auto operand : {&OracleProblem::k, &OracleProblem::v}) {
      RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = length, .head_dim = dim}, 1);
      problem.dense.causal = true;
      settle(problem);
      auto const run = [&] {
        annulus::SelfRing ring;
        annulus::CpuBackend backend{.threads = 1};
        return run_rank<float>(problem, ring, backend);
      };
      RingResult const clean = run();
      (problem.dense.*operand)[bad * dim + 3] = poison;
      RingResult const poisoned = run();
      for (std::int64_t i = 0; i < length; ++i) {
        bool hit = false;
        for (std::int64_t d = 0; d < dim; ++d) {
          auto const place = static_cast<std::size_t>(i * dim + d);
          hit = hit || !std::isfinite(poisoned.output[place]);
          if (i < bad) {
            CHECK(poisoned.output[place] == clean.output[place]);
            CHECK(poisoned.dq[place] == clean.dq[place]);
          }
        }
        // An infinite key may have the logit -inf, and then weight 0.
        if (i < bad || operand == &OracleProblem::v || std::isnan(poison)) CHECK(hit == (i >= bad));
      }
    }
  // A query that holds NaN is not treated as a masked row.
  {
    RingProblem with_nan = small_ring_problem({.query_heads = 1, .query_length = length, .head_dim = dim}, 1);
    with_nan.dense.causal = true;
    settle(with_nan);
    with_nan.dense.q[bad * dim] = not_a_number;
    annulus::SelfRing alone;
    annulus::CpuBackend one_thread{.threads = 1};
    RingResult const result = run_rank<float>(with_nan, alone, one_thread);
    for (std::int64_t i = 0; i < length; ++i) {
      auto const first = static_cast<std::size_t>(i * dim);
      CHECK(std::isnan(result.output[first]) == (i == bad));
      CHECK(std::isnan(result.lse[static_cast<std::size_t>(i)]) == (i == bad));
      CHECK(std::isnan(result.dq[first]) == (i == bad));
      CHECK(std::isnan(result.dk[first]) == (i <= bad));
    }
  }
  // If the dout row of a query holds NaN, only keys that it sees have NaN gradients.
  RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = length, .head_dim = dim}, 1);
  problem.dense.causal = true;
  settle(problem);
  problem.dout[bad * dim] = not_a_number;
  annulus::SelfRing ring;
  annulus::CpuBackend backend{.threads = 1};
  RingResult const result = run_rank<float>(problem, ring, backend);
  for (std::int64_t j = 0; j < length; ++j)
    CHECK(std::isnan(result.dv[static_cast<std::size_t>(j * dim)]) == (j <= bad));
}

TEST_CASE("an infinite key of weight 0 has gradients of 0, also in panels with idle lanes", "[cpu]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  float const infinity = std::numeric_limits<float>::infinity();
  for (annulus::Index queries : {32, 33, 40})
    for (annulus::Index infinite_keys : {1, 3}) {
      INFO(queries << " queries, " << infinite_keys << " of 3 keys infinite");
      Tensor q(1, queries, 1, 8), k(1, 3, 1, 8), v(1, 3, 1, 8), dout(1, queries, 1, 8);
      for (Tensor* x : {&q, &k, &v, &dout}) x->setRandom();
      // A logit of -inf for every query.
      for (annulus::Index i = 0; i < queries; ++i) q(0, i, 0, 0) = -1;
      for (annulus::Index j = 3 - infinite_keys; j < 3; ++j) k(0, j, 0, 0) = infinity;
      annulus::SelfRing ring;
      annulus::CpuBackend backend{.threads = 1};
      annulus::RingAttention attention(ring, backend, {});
      auto const forward = attention.forward(q, k, v);
      auto const gradients = attention.backward(dout, forward, q, k, v);
      for (Tensor const* gradient : {&gradients.dk, &gradients.dv})
        for (annulus::Index j = 0; j < 3; ++j)
          for (annulus::Index d = 0; d < 8; ++d) {
            CHECK(std::isfinite((*gradient)(0, j, 0, d)));
            if (j >= 3 - infinite_keys) CHECK((*gradient)(0, j, 0, d) == 0);
          }
    }
}
