// The ejkernel adapter against the oracle, forward and backward, on rings of 1, 2 and 4 ranks.

#include <annulus/annulus.hpp>
#include <string>

#include "interop/ejkernel_run.hpp"
#include "support/catch.hpp"
#include "support/judge.hpp"

using namespace annulus_test;
namespace ejkernel = annulus::ejkernel;

namespace {

template <class T>
constexpr Bounds bounds_of = std::is_same_v<T, double> ? double_bounds : float_bounds;

template <class T>
void sweep(std::uint64_t first_seed, int problems) {
  int const ranks = GENERATE(1, 2, 4);
  for (int i = 0; i < problems; ++i) {
    RingProblem problem = random_ejkernel_problem(first_seed + static_cast<std::uint64_t>(i), ranks);
    round_operands<T>(problem);
    CHECK(judge(problem, run_ejkernel<T>(problem), bounds_of<T>).complaint == "");
  }
}

/// A causal problem of 4 query heads and 2 kv heads, with `length` positions on `ranks` ranks.
RingProblem grouped_problem(int ranks, Index length, std::uint64_t seed) {
  RingProblem problem;
  problem.ranks = ranks;
  OracleProblem& d = problem.dense;
  d.batch = 2;
  d.query_heads = 4;
  d.kv_heads = 2;
  d.head_dim = 5;
  d.value_dim = 3;
  d.query_length = d.key_length = length;
  d.causal = true;
  take_lengths_from_sharding(problem);
  std::mt19937_64 engine(seed);
  fill_operands(problem, engine);
  take_options_from_dense(problem);
  problem.text = "ejkernel: " + std::to_string(ranks) + " ranks, " + std::to_string(length) + " positions";
  return problem;
}

}  // namespace

TEST_CASE("ejkernel: random options in double", "[ejkernel]") { sweep<double>(9'000'000, 60); }
TEST_CASE("ejkernel: random options in float", "[ejkernel]") { sweep<float>(9'100'000, 40); }

TEST_CASE("ejkernel: the sequence length need not be a multiple of any block size", "[ejkernel][C1][C23][C24]") {
  RingProblem const problem = grouped_problem(GENERATE(1, 2, 4), GENERATE(1, 3, 127, 128, 129), 5);
  CHECK(judge(problem, run_ejkernel<double>(problem), double_bounds).complaint == "");
}

TEST_CASE("ejkernel: the mask builder gets global positions, heads and batch items", "[ejkernel]") {
  RingProblem problem = grouped_problem(GENERATE(1, 2, 4), 23, 6);
  auto const builder = [](Index batch, Index head, Index query, Index key) {
    return (query + 2 * key + 3 * head + 5 * batch) % 4 != 0;
  };
  problem.dense.predicate = builder;
  CHECK(judge(problem, run_ejkernel<double>(problem, builder), double_bounds).complaint == "");
}

TEST_CASE("ejkernel: windows may cross no, one or all shard boundaries", "[ejkernel][C18]") {
  RingProblem problem = grouped_problem(GENERATE(1, 2, 4), 29, 7);
  auto const [left, right] = GENERATE(table<int, int>({{0, 0}, {1, 0}, {0, 3}, {5, 2}, {9, 9}, {28, 28}}));
  problem.dense.causal = GENERATE(false, true);
  problem.dense.window_left = left;
  problem.dense.window_right = right;
  CHECK(judge(problem, run_ejkernel<double>(problem), double_bounds).complaint == "");
}

TEST_CASE("ejkernel: packed documents may have padding, whose ids are 0 or below", "[ejkernel][C22]") {
  RingProblem problem = grouped_problem(GENERATE(1, 2, 4), 31, 8);
  int const first_id = GENERATE(-1, 0, 1);
  std::vector<int> ids;
  for (int b = 0; b < 2; ++b)
    for (int i = 0; i < 31; ++i) ids.push_back(first_id + (i + 3 * b) / 7);
  problem.dense.query_documents = problem.dense.key_documents = ids;
  RingResult const seen = run_ejkernel<double>(problem);
  CHECK(judge(problem, seen, double_bounds).complaint == "");
  // A masked row in annulus's convention.
  if (first_id <= 0) {
    CHECK(seen.output[0] == 0);
    CHECK(seen.lse[0] == -std::numeric_limits<double>::infinity());
    CHECK(seen.dq[0] == 0);
  }
}

TEST_CASE("ejkernel: softmax_aux may be shared by the heads, and its gradient sums over them", "[ejkernel][C15][C16]") {
  // 3 sink logits for 4 heads.
  int const ranks = GENERATE(1, 2, 4);
  bool const one_axis = GENERATE(false, true);
  RingProblem problem = grouped_problem(ranks, 17, 9);
  std::vector<double> const shared{0.5, -1.0, 1.5};
  problem.dense.sinks.emplace();
  problem.dense.sinks->count = 3;
  for (int h = 0; h < 4; ++h)
    problem.dense.sinks->values.insert(problem.dense.sinks->values.end(), shared.begin(), shared.end());

  OracleGradients const exact = oracle_backward(problem.dense, problem.dout);
  OracleForward const exact_forward = oracle_forward(problem.dense);
  std::vector<double> expected(3);
  for (std::size_t i = 0; i < exact.dsinks.size(); ++i) expected[i % 3] += exact.dsinks[i];

  auto const results = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    OracleProblem const& d = problem.dense;
    auto const rows = problem.segments(annulus::Side::query, ring.rank());
    auto const shard = [&](std::vector<double> const& global, Index heads, Index dim) {
      return ring_run_detail::shard_of<double, HostPlacement>(global, std::array<Index, 4>{2, 17, heads, dim}, 1, rows);
    };
    auto const q = shard(d.q, 4, 5), k = shard(d.k, 2, 5), v = shard(d.v, 2, 3), dout = shard(problem.dout, 4, 3);
    Eigen::Tensor<double, 1> line(3);
    Eigen::Tensor<double, 2> row(1, 3);
    for (Index n = 0; n < 3; ++n) line(n) = row(0, n) = shared[static_cast<std::size_t>(n)];
    ejkernel::RingAttentionOptions<double> options{.causal = true};
    if (one_axis)
      options.softmax_aux = line;
    else
      options.softmax_aux = row;
    auto const residuals = ejkernel::ring_attention_fwd(ring, backend, q, k, v, options);
    auto const gradients = ejkernel::ring_attention_bwd(ring, backend, residuals, dout);
    return std::pair{ring_run_detail::widened(annulus::TensorView<double const, 3>(annulus::view_of(residuals.lse))),
                     *gradients.dsinks};
  });
  for (auto const& [lse, dsinks] : results) {
    REQUIRE(dsinks.dimension(0) == 1);
    REQUIRE(dsinks.dimension(1) == 3);
    for (Index n = 0; n < 3; ++n) CHECK(dsinks(0, n) == Approx(expected[static_cast<std::size_t>(n)]).epsilon(1e-12));
  }
  CHECK(results[0].first[0] == Approx(exact_forward.lse[0]).epsilon(1e-14));
}

TEST_CASE("ejkernel: one sink logit for each head may be given with one axis or with two", "[ejkernel]") {
  auto const outputs = annulus::run_ring(1, [](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    Eigen::Tensor<float, 4> x(1, 3, 2, 2);
    x.setConstant(0.5f);
    Eigen::Tensor<float, 1> line(2);
    line.setValues({1.0f, -1.0f});
    Eigen::Tensor<float, 2> column(2, 1), row(1, 2);
    column.setValues({{1.0f}, {-1.0f}});
    row.setValues({{1.0f, -1.0f}});
    std::vector<std::pair<float, float>> values;
    for (auto const& options :
         {ejkernel::RingAttentionOptions<float>{.softmax_aux = line}, {.softmax_aux = column}, {.softmax_aux = row}}) {
      auto const o = ejkernel::ring_attention(ring, backend, x, x, x, options);
      values.emplace_back(o(0, 0, 0, 0), o(0, 0, 1, 0));
    }
    return values;
  })[0];
  CHECK(outputs[0] == outputs[1]);
  CHECK(outputs[0].first < outputs[0].second);
  // Both heads have both sink logits.
  CHECK(outputs[2].first == outputs[2].second);
  CHECK(outputs[2].first < outputs[0].first);
}

TEMPLATE_TEST_CASE("ejkernel: results in 16-bit types equal those of annulus", "[ejkernel][C13]", Eigen::half,
                   Eigen::bfloat16) {
  using T = TestType;
  RingProblem problem = grouped_problem(3, 20, 10);
  round_operands<T>(problem);
  RingResult plain = whole_result<T>(problem);
  RingResult adapted = run_ejkernel<T>(problem);
  CHECK(adapted.output == plain.output);
  CHECK(adapted.lse == plain.lse);
  CHECK(adapted.dq == plain.dq);
  CHECK(adapted.dk == plain.dk);
  CHECK(adapted.dv == plain.dv);
}
