// Traps of the softmax: rows that see no key, logits far apart, the scale, the unit of lse, and merging of parts.

#include <annulus/numerics/softmax.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "integration/solve.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::ExplicitMap;
using annulus::Rotation;

namespace {

constexpr double nothing_seen = -std::numeric_limits<double>::infinity();

bool all_zero(std::vector<double> const& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return value == 0; });
}

bool all_finite(std::vector<double> const& values) {
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

/// Hides every key from these rows.
void hide_from_rows(RingProblem& problem, std::vector<std::int64_t> const& rows) {
  OracleProblem& d = problem.dense;
  d.mask = {1, 1, std::vector<char>(static_cast<std::size_t>(d.query_length * d.key_length), 1)};
  for (std::int64_t row : rows) std::fill_n(d.mask->values.begin() + row * d.key_length, d.key_length, char{0});
}

}  // namespace

TEST_CASE("all keys of a row may be hidden in its first, middle or last steps, or in all", "[trap][C2]") {
  // Queries in order, keys in reverse: with a causal mask the first steps of the early ranks have only future keys.
  for (int ranks : {2, 3, 5})
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      auto const forwards = [](int r) { return r; };
      auto const backwards = [ranks](int r) { return ranks - 1 - r; };
      RingProblem problem = small_ring_problem(
          {.query_length = 25}, ranks,
          ExplicitMap{blocks_in_order(ranks, 25, forwards), blocks_in_order(ranks, 25, backwards)}, rotation);
      problem.dense.causal = true;
      CHECK(complaints(problem) == "");
      // The first 7 rows see no key, the others see fewer keys than without the offset.
      problem.dense.query_offset = -7;
      CHECK(complaints(problem) == "");
    }
  // Rows that see no key, at both ends and in the middle; then one row with all keys of one step hidden.
  RingProblem problem = small_ring_problem({.query_length = 24}, 4);
  hide_from_rows(problem, {0, 1, 11, 23});
  CHECK(complaints(problem) == "");
  for (std::int64_t step = 0; step < 4; ++step) {
    hide_from_rows(problem, {});
    std::fill_n(problem.dense.mask->values.begin() + 10 * 24 + 6 * step, 6, char{0});
    CHECK(complaints(problem) == "");
  }
}

namespace {

/// lse is as large as the logits and rounded like them, so the weights that the backward pass recomputes from both have
/// an error of two roundings of a value of size `reach`.
template <class T>
Bounds bounds_for_logits_of(double reach) {
  double const rounding = std::numeric_limits<T>::epsilon() / 2;
  return {bounds_of<T>().of_result, bounds_of<T>().of_terms + 2 * reach * rounding};
}

}  // namespace

TEST_CASE("parts with very different log-sum-exps are merged without overflow", "[trap][C3]") {
  // Owners have logits near +reach, 0 and -reach, in every order of arrival.
  for (double reach : {400.0, 1e4})
    for (int order = 0; order < 3; ++order)
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        RingProblem problem =
            small_ring_problem({.query_heads = 1, .query_length = 12, .head_dim = 1, .value_dim = 3}, 3, {}, rotation);
        problem.dense.softmax_scale = 1;
        std::fill(problem.dense.q.begin(), problem.dense.q.end(), 1.0);
        for (int key = 0; key < 12; ++key)
          problem.dense.k[static_cast<std::size_t>(key)] = reach * (1 - (key / 4 + order) % 3) + 0.25 * (key % 4);
        // Causal: the part with the largest logits comes first, last, or is not visible.
        for (bool causal : {false, true}) {
          problem.dense.causal = causal;
          CHECK(complaint<double>(problem, bounds_for_logits_of<double>(reach)) == "");
          CHECK(complaint<float>(problem, bounds_for_logits_of<float>(reach)) == "");
        }
      }

  for (double far : {700.0, 1e4, 1e30, std::numeric_limits<double>::max()}) {
    auto const down = annulus::merge_weights(far, -far), up = annulus::merge_weights(-far, far);
    CHECK((down.lse == far && up.lse == far));
    CHECK((down.first == 1 && down.second == 0 && up.first == 0 && up.second == 1));
  }
}

TEST_CASE("a row that sees no key has output 0, lse -inf and gradients of exactly 0", "[trap][C4]") {
  for (bool with_sinks : {false, true})
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem({.query_length = 9, .key_length = 9}, 3, {}, rotation);
      problem.dense.causal = true;
      problem.dense.query_offset = -9;
      if (with_sinks) give_sinks(problem, 2);
      RingResult const result = solve<float>(problem);
      CHECK(judge(problem, result, float_bounds).complaint == "");
      CHECK(all_zero(result.output));
      CHECK((all_zero(result.dq) && all_zero(result.dk) && all_zero(result.dv) && all_zero(result.dsinks)));
      if (with_sinks)
        CHECK(all_finite(result.lse));
      else
        CHECK(result.lse == std::vector<double>(result.lse.size(), nothing_seen));
    }
}

TEST_CASE("shards of one or two rows keep the backward pass finite up to 32 ranks", "[trap][C5]") {
  for (int ranks : {1, 2, 3, 8, 32})
    for (int rows : {1, 2})
      for (annulus::Sharding const& sharding :
           {annulus::Sharding(annulus::Contiguous{}), annulus::Sharding(annulus::Striped{}),
            annulus::Sharding(annulus::Zigzag{})})
        for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
          RingProblem problem =
              small_ring_problem({.query_heads = 1, .query_length = ranks * rows}, ranks, sharding, rotation);
          problem.dense.causal = true;
          RingResult const result = solve<float>(problem);
          CHECK((all_finite(result.dq) && all_finite(result.dk) && all_finite(result.dv)));
          CHECK(judge(problem, result, float_bounds).complaint == "");
        }
}

TEST_CASE("a scale of 0 is used as such: the output is the mean of the visible values", "[trap][C7]") {
  for (annulus::Sharding const& sharding : every_sharding(3, 14, 14)) {
    RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = 14, .value_dim = 1}, 3, sharding);
    problem.dense.causal = true;
    problem.dense.softmax_scale = 0;
    RingResult const result = solve<double>(problem);
    for (std::size_t row = 0; row < 14; ++row) {
      auto const begin = problem.dense.v.begin();
      double const mean =
          std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(row) + 1, 0.0) / static_cast<double>(row + 1);
      CHECK(std::abs(result.output[row] - mean) <= 1e-14);
    }
    CHECK(all_zero(result.dq));
    CHECK(all_zero(result.dk));
    CHECK(judge(problem, result, double_bounds).complaint == "");
  }
}

TEST_CASE("lse is a natural logarithm, sink logits included", "[trap][C14]") {
  RingProblem problem = small_ring_problem({.query_heads = 1, .query_length = 7}, 3);
  std::fill(problem.dense.k.begin(), problem.dense.k.end(), 0.0);
  problem.dense.causal = true;
  RingResult const plain = solve<double>(problem);
  for (std::size_t row = 0; row < 7; ++row)
    CHECK(std::abs(plain.lse[row] - std::log(static_cast<double>(row + 1))) <= 1e-15);

  problem.dense.sinks = {2, {std::log(2.0), std::log(3.0)}};
  RingResult const with_sinks = solve<double>(problem);
  for (std::size_t row = 0; row < 7; ++row)
    CHECK(std::abs(with_sinks.lse[row] - std::log(static_cast<double>(row + 6))) <= 1e-15);

  // The public merge rule uses the same unit: 3 and 5 keys of logit 0 are 8 keys.
  auto const joined = annulus::merge_weights(std::log(3.0), std::log(5.0));
  CHECK(std::abs(joined.lse - std::log(8.0)) <= 1e-15);
  CHECK(std::abs(joined.first - 3.0 / 8) <= 1e-15);
}

TEST_CASE("hidden keys have weight 0, however large their logits", "[trap][C45]") {
  // A finite substitute for -inf would exceed the visible logits of about -1e10, or average a row without visible keys.
  for (double reach : {1e10, 1e30})
    for (Rotation rotation : {Rotation::keys, Rotation::automatic}) {
      RingProblem problem =
          small_ring_problem({.query_heads = 1, .query_length = 12, .head_dim = 1, .value_dim = 1}, 4, {}, rotation);
      OracleProblem& d = problem.dense;
      d.softmax_scale = 1;
      std::fill(d.q.begin(), d.q.end(), 1.0);
      // Visible keys, document 1: logits of -reach. Hidden keys, document 2: logits of +reach.
      d.query_documents = std::vector<int>(12, 1);
      (*d.query_documents)[5] = 3;  // a document without a key
      d.key_documents = std::vector<int>(12, 1);
      for (std::size_t key = 0; key < 12; ++key) {
        bool const hidden = key % 3 == 1;
        if (hidden) (*d.key_documents)[key] = 2;
        d.k[key] = hidden ? reach : -reach;
        d.v[key] = hidden ? 1000 : static_cast<double>(key);
      }
      RingResult const result = solve<float>(problem);
      for (std::size_t row = 0; row < 12; ++row)
        CHECK(result.output[row] == (row == 5 ? 0 : (0 + 2 + 3 + 5 + 6 + 8 + 9 + 11) / 8.0));
      CHECK(result.lse[5] == nothing_seen);
      CHECK(result.dq[5] == 0);
      // A float of 1e10 cannot represent an added log(8), so only the gradients that must be 0 are exact.
      for (std::size_t key = 0; key < 12; ++key)
        if (key % 3 == 1) CHECK((result.dk[key] == 0 && result.dv[key] == 0));
      CHECK((all_finite(result.dq) && all_finite(result.dk) && all_finite(result.dv)));
    }
}
