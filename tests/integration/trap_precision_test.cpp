// Traps of precision: which values are rounded, how often, and which reference the error is compared with.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/dense_same_precision.hpp"
#include "support/shards.hpp"
#include "support/three_way.hpp"

using namespace annulus_test;
using annulus::Rotation;
using annulus::SimulatedRing;

namespace {

/// A problem with all operands that one call accepts.
RingProblem problem_with_all_operands(int ranks) {
  RingProblem problem = small_ring_problem(
      {.batch = 2, .query_heads = 8, .kv_heads = 4, .query_length = 30, .head_dim = 8}, ranks, annulus::Zigzag{});
  give_bias(problem, 1, 8);
  give_mask(problem, 2, 1);
  give_documents(problem, documents_of_lengths(2, {11, 19}));
  give_sinks(problem, 2);
  problem.dense.causal = true;
  problem.dense.logit_softcap = 4;
  problem.dense.dropout_probability = 0.2;
  return problem;
}

template <class T>
bool all_fit(std::vector<double> const& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return RoundTo<T>{}(value) == value; });
}

std::vector<double> minus(std::vector<double> a, std::vector<double> const& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

/// Squares of the errors of output, lse, dq, dk and dv, each relative to the norm of the exact result.
using SquaredErrors = std::array<double, 5>;

/// Problems of one size, their exact results, and the squared errors of dense attention in T.
template <class T>
struct MeasuredProblems {
  static constexpr std::int64_t length = 128;
  static constexpr std::size_t count = 16;

  std::vector<RingProblem> problems;
  std::vector<OracleForward> forward;
  std::vector<OracleGradients> gradients;
  std::vector<SquaredErrors> dense;

  MeasuredProblems() {
    RoundTo<T> const round;
    for (std::size_t i = 0; i < count; ++i) {
      RingProblem problem =
          small_ring_problem({.query_heads = 1, .query_length = length, .head_dim = 16}, 1, {}, Rotation::keys, i + 1);
      problem.dense.causal = true;
      settle(problem);
      round_operands<T>(problem);
      forward.push_back(oracle_forward(problem.dense));
      gradients.push_back(oracle_backward(problem.dense, problem.dout));
      dense.push_back(errors(i, dense_same_precision_forward(problem.dense, round),
                             dense_same_precision_backward(problem.dense, problem.dout, round)));
      problems.push_back(std::move(problem));
    }
  }

  std::vector<SquaredErrors> of_ring(int ranks, annulus::Sharding const& sharding, Rotation rotation) const {
    std::vector<SquaredErrors> squares;
    for (std::size_t i = 0; i < count; ++i) {
      RingProblem problem = problems[i];
      problem.ranks = ranks;
      problem.options.sharding = sharding;
      problem.options.rotation = rotation;
      take_lengths_from_sharding(problem);
      RingResult const seen = assemble(problem, solve_by_rank<T>(problem));
      squares.push_back(errors(i, seen, seen));
    }
    return squares;
  }

 private:
  template <class Forward, class Gradients>
  SquaredErrors errors(std::size_t i, Forward const& seen, Gradients const& seen_gradients) const {
    auto const square = [](std::vector<double> const& result, std::vector<double> const& exact) {
      double const error = distance(result, exact) / norm(exact);
      return error * error;
    };
    return {square(seen.output, forward[i].output), square(seen.lse, forward[i].lse),
            square(seen_gradients.dq, gradients[i].dq), square(seen_gradients.dk, gradients[i].dk),
            square(seen_gradients.dv, gradients[i].dv)};
  }
};

double mean(std::vector<SquaredErrors> const& squares, std::size_t result) {
  double sum = 0;
  for (SquaredErrors const& of_problem : squares) sum += of_problem[result];
  return sum / static_cast<double>(squares.size());
}

/// Standard error of the mean of a - b.
double standard_error(std::vector<SquaredErrors> const& a, std::vector<SquaredErrors> const& b, std::size_t result) {
  double const count = static_cast<double>(a.size()), difference = mean(a, result) - mean(b, result);
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(a[i][result] - b[i][result] - difference, 2);
  return std::sqrt(sum / count / (count - 1));
}

}  // namespace

TEST_CASE("the backward pass needs the output and lse over all keys, not those of one step", "[trap][C9]") {
  RingProblem problem = small_ring_problem({.query_length = 24}, 3);
  settle(problem);
  round_operands<float>(problem);
  for (bool of_own_keys_only : {false, true}) {
    auto const solve_rank = [&](SimulatedRing& ring, auto& backend) {
      auto const own = shards_of<float>(problem, ring.rank());
      annulus::RingAttention attention(ring, backend, problem.options);
      auto const forward = attention.forward(own.q, own.k, own.v);
      annulus::SelfRing alone;
      auto const of_own_keys = annulus::ring_attention_forward(alone, backend, problem.options, own.q, own.k, own.v);
      auto const gradients =
          attention.backward(own.dout, of_own_keys_only ? of_own_keys : forward, own.q, own.k, own.v);
      return result_of(forward, gradients);
    };
    auto const results = annulus::run_ring(problem.ranks, [&](SimulatedRing& ring) {
      return with_asked_backend([&](auto& backend) { return solve_rank(ring, backend); });
    });
    // Each gradient has its own bound, so that no error is hidden by a larger gradient.
    std::string const complaint = judge(problem, assemble(problem, results), float_bounds).complaint;
    for (char const* gradient : {"dq is off", "dk is off", "dv is off"})
      CHECK((complaint.find(gradient) != std::string::npos) == of_own_keys_only);
  }
}

TEMPLATE_TEST_CASE("the error does not grow with the number of ranks", "[slow][trap][C11]", float, Eigen::half,
                   Eigen::bfloat16) {
  // On one rank the largest weight of a row is often exactly 1, which is not rounded; in dense attention no probability
  // is exact. The error of the ring may not exceed the larger of these two errors, times an allowance for one more
  // rounding per rank (its sums are rescaled), plus three standard errors: a few roundings in the smallest rows
  // dominate the error of a problem.
  MeasuredProblems<TestType> const measured;
  auto const alone = measured.of_ring(1, annulus::Contiguous{}, Rotation::keys);
  for (annulus::Sharding const& sharding :
       {annulus::Sharding(annulus::Contiguous{}), annulus::Sharding(annulus::Zigzag{})})
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (int ranks : {4, 32}) {
        auto const spread = measured.of_ring(ranks, sharding, rotation);
        INFO(ranks << " ranks, " << sharding.name() << ", rotation " << name_of(rotation));
        for (std::size_t i = 0; i < alone.front().size(); ++i) {
          INFO("result " << i << ": one rank " << mean(alone, i) << ", dense " << mean(measured.dense, i));
          double const roundings = 1 + static_cast<double>(ranks) / static_cast<double>(measured.length);
          CHECK(mean(spread, i) <=
                roundings * std::max(mean(alone, i), mean(measured.dense, i)) + 3 * standard_error(spread, alone, i));
        }
      }
}

TEMPLATE_TEST_CASE("results have the element type of the operands", "[trap][C12]", double, float, Eigen::half,
                   Eigen::bfloat16) {
  using T = TestType;
  using Forward = annulus::Forward<RowMajorTensor<T>>;
  using Gradients = annulus::Gradients<RowMajorTensor<T>>;
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  STATIC_REQUIRE(std::is_same_v<annulus::ScalarOf<decltype(Forward::output)>, T>);
  STATIC_REQUIRE(std::is_same_v<annulus::ScalarOf<decltype(Forward::lse)>, Wide>);
  STATIC_REQUIRE(std::is_same_v<annulus::ScalarOf<decltype(Gradients::dq)>, T>);
  STATIC_REQUIRE(std::is_same_v<annulus::ScalarOf<typename decltype(Gradients::dbias)::value_type>, T>);
  STATIC_REQUIRE(std::is_same_v<annulus::ScalarOf<typename decltype(Gradients::dsinks)::value_type>, Wide>);

  // The values use the precision of that type: no narrower type represents them.
  RingProblem problem = problem_with_all_operands(3);
  RingResult const result = solve<T>(problem);
  for (auto member : {&RingResult::output, &RingResult::dq, &RingResult::dk, &RingResult::dv, &RingResult::dbias}) {
    CHECK(all_fit<T>(result.*member));
    CHECK(all_fit<Eigen::bfloat16>(result.*member) == std::is_same_v<T, Eigen::bfloat16>);
    if (sizeof(T) > 2) CHECK(!all_fit<Eigen::half>(result.*member));
    if (sizeof(T) > 4) CHECK(!all_fit<float>(result.*member));
  }
  for (auto member : {&RingResult::lse, &RingResult::dsinks}) CHECK(!all_fit<Eigen::bfloat16>(result.*member));
}

TEMPLATE_TEST_CASE("every element type works with all operands together", "[trap][C13]", double, float, Eigen::half,
                   Eigen::bfloat16) {
  for (int ranks : {1, 2, 5}) {
    RingProblem problem = problem_with_all_operands(ranks);
    RingResult const result = solve<TestType>(problem);
    if constexpr (sizeof(TestType) == 2)
      CHECK(ThreeWayJudge<TestType>{}.complaint(problem, result) == "");
    else
      CHECK(judge(problem, result, bounds_of<TestType>()).complaint == "");
  }
}

TEST_CASE("rounding the output affects the gradients only through delta", "[trap][C34]") {
  RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = 30, .head_dim = 8}, 3);
  problem.dense.causal = true;
  settle(problem);
  round_operands<Eigen::bfloat16>(problem);
  auto const run = [&](bool rounded) {
    auto const solve_rank = [&](SimulatedRing& ring, auto& backend) {
      auto const own = shards_of<float>(problem, ring.rank());
      annulus::RingAttention attention(ring, backend, problem.options);
      auto forward = attention.forward(own.q, own.k, own.v);
      if (rounded)
        for (Index i = 0; i < forward.output.size(); ++i)
          forward.output.data()[i] = static_cast<float>(static_cast<Eigen::bfloat16>(forward.output.data()[i]));
      return result_of(forward, attention.backward(own.dout, forward, own.q, own.k, own.v));
    };
    return assemble(problem, annulus::run_ring(problem.ranks, [&](SimulatedRing& ring) {
                      return with_asked_backend([&](auto& backend) { return solve_rank(ring, backend); });
                    }));
  };
  RingResult const exact = run(false), rounded = run(true);
  REQUIRE(judge(problem, exact, float_bounds).complaint == "");
  CHECK(rounded.dv == exact.dv);

  // A change c of a row's delta changes dq by -scale c sum_j p_j k_j and dk_j by -scale c p_j q, p: probabilities.
  OracleProblem const& d = problem.dense;
  double const scale = 1 / std::sqrt(8.0);
  std::vector<double> dq_change(exact.dq.size()), dk_change(exact.dk.size());
  oracle_detail::SeenRow<double> seen;
  for (std::int64_t row = 0; row < 30; ++row) {
    double change = 0;
    for (std::int64_t i = 8 * row; i < 8 * (row + 1); ++i) {
      auto const place = static_cast<std::size_t>(i);
      change += problem.dout[place] * (rounded.output[place] - exact.output[place]);
    }
    oracle_detail::look(d, 0, 0, row, seen);
    for (auto const& key : seen.keys)
      for (std::int64_t i = 0; i < 8; ++i) {
        auto const of_query = static_cast<std::size_t>(8 * row + i), of_key = static_cast<std::size_t>(8 * key.key + i);
        dq_change[of_query] -= scale * change * key.probability * d.k[of_key];
        dk_change[of_key] -= scale * change * key.probability * d.q[of_query];
      }
  }
  auto const check_change = [](std::vector<double> const& after, std::vector<double> const& before,
                               std::vector<double> const& expected) {
    // Both are float results, each with an error of its own.
    CHECK(distance(minus(after, before), expected) <= 2 * float_bounds.of_result * norm(before));
    CHECK(norm(expected) > 50 * float_bounds.of_result * norm(before));
  };
  check_change(rounded.dq, exact.dq, dq_change);
  check_change(rounded.dk, exact.dk, dk_change);
}

TEMPLATE_TEST_CASE("in 16-bit types the error of the ring is bounded by that of dense attention in the same type",
                   "[trap][C46]", Eigen::half, Eigen::bfloat16) {
  ThreeWayJudge<TestType> three_way;
  for (int ranks : {1, 4, 32})
    for (annulus::Sharding const& sharding :
         {annulus::Sharding(annulus::Contiguous{}), annulus::Sharding(annulus::Zigzag{})})
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        RingProblem problem =
            small_ring_problem({.query_length = 96, .head_dim = 16, .value_dim = 8}, ranks, sharding, rotation);
        problem.dense.causal = true;
        RingResult const result = solve<TestType>(problem);
        CHECK(three_way.complaint(problem, result) == "");
      }
  CHECK(three_way.complaint_about_all() == "");

  // The judge can fail: it rejects an error of four units in the last place.
  RingProblem problem = small_ring_problem({.query_length = 96, .head_dim = 16}, 4);
  RingResult spoilt = solve<TestType>(problem);
  double const unit = std::is_same_v<TestType, Eigen::half> ? std::ldexp(1.0, -10) : std::ldexp(1.0, -7);
  for (double& value : spoilt.output) value *= 1 + 4 * unit;
  CHECK(ThreeWayJudge<TestType>{}.complaint(problem, spoilt).find("output is off") != std::string::npos);
}

TEST_CASE("in float the error of the ring is at most twice that of dense attention in float", "[trap][C46]") {
  for (int ranks : {1, 4, 32}) {
    RingProblem problem = small_ring_problem({.query_length = 96, .head_dim = 16}, ranks, annulus::Striped{});
    problem.dense.causal = true;
    RingResult const seen = solve<float>(problem);
    OracleForward const exact = oracle_forward(problem.dense);
    OracleGradients const exact_gradients = oracle_backward(problem.dense, problem.dout);
    RoundTo<float> const round;
    OracleForward const dense = dense_same_precision_forward(problem.dense, round);
    OracleGradients const dense_gradients = dense_same_precision_backward(problem.dense, problem.dout, round);
    CHECK(distance(seen.output, exact.output) <= 2 * distance(dense.output, exact.output));
    CHECK(distance(seen.lse, exact.lse) <= 2 * distance(dense.lse, exact.lse));
    CHECK(distance(seen.dq, exact_gradients.dq) <= 2 * distance(dense_gradients.dq, exact_gradients.dq));
    CHECK(distance(seen.dk, exact_gradients.dk) <= 2 * distance(dense_gradients.dk, exact_gradients.dk));
    CHECK(distance(seen.dv, exact_gradients.dv) <= 2 * distance(dense_gradients.dv, exact_gradients.dv));
  }
}
