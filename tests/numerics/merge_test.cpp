#include "annulus/numerics/softmax.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

/// A normalised partial result over some keys.
struct Part {
  std::vector<double> row;
  double lse;
};

struct Keys {
  std::vector<double> logits;
  std::vector<std::vector<double>> values;
};

/// Softmax of the keys in extended precision; no keys give the empty part.
Part direct(std::vector<Keys> const& blocks, std::size_t dim) {
  long double maximum = -std::numeric_limits<long double>::infinity();
  for (Keys const& keys : blocks)
    for (double logit : keys.logits) maximum = std::max(maximum, static_cast<long double>(logit));
  Part part{std::vector<double>(dim, 0.0), empty_row<double>};
  if (std::isinf(maximum)) return part;
  long double sum = 0;
  std::vector<long double> row(dim, 0);
  for (Keys const& keys : blocks)
    for (std::size_t j = 0; j < keys.logits.size(); ++j) {
      long double const weight = std::exp(static_cast<long double>(keys.logits[j]) - maximum);
      sum += weight;
      for (std::size_t d = 0; d < dim; ++d) row[d] += weight * keys.values[j][d];
    }
  for (std::size_t d = 0; d < dim; ++d) part.row[d] = static_cast<double>(row[d] / sum);
  part.lse = static_cast<double>(maximum + std::log(sum));
  return part;
}

Part merged(Part into, Part const& from) {
  merge_rows(std::span<double>(into.row), into.lse, std::span<double const>(from.row), from.lse);
  return into;
}

std::vector<Keys> random_blocks(std::uint64_t seed, std::size_t blocks, std::size_t dim, double spread) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> logit(-spread, spread), value(-1, 1);
  std::uniform_int_distribution<int> keys(0, 4);
  std::vector<Keys> result(blocks);
  for (Keys& block : result)
    for (int j = keys(random); j > 0; --j) {
      block.logits.push_back(logit(random));
      block.values.emplace_back(dim);
      for (double& x : block.values.back()) x = value(random);
    }
  return result;
}

/// Error bound of `merges` merges: an lse is rounded to |lse| epsilon, and an error of an lse is a relative error of
/// the weights made from it; exp, log, the sum, the division and the two products of a row add a few epsilon each.
double bound(double largest_lse, int merges) {
  return (8 + 4 * largest_lse) * merges * std::numeric_limits<double>::epsilon();
}

/// Equal infinities are close; their difference would be NaN.
bool close(double a, double b, double tolerance) { return a == b || std::abs(a - b) <= tolerance; }

}  // namespace

TEMPLATE_TEST_CASE("rescale of an empty part is 0, never NaN", "[numerics]", float, double) {
  using A = TestType;
  CHECK(rescale(empty_row<A>, empty_row<A>) == A(0));
  CHECK(rescale(empty_row<A>, A(3)) == A(0));
  CHECK(rescale(A(3), A(3)) == A(1));
  CHECK(rescale(A(-1e30), A(1e30)) == A(0));
}

TEMPLATE_TEST_CASE("two empty parts give an empty part", "[numerics][C2]", float, double) {
  auto const weights = merge_weights(empty_row<TestType>, empty_row<TestType>);
  CHECK(weights.lse == empty_row<TestType>);
  CHECK((weights.first == 0 && weights.second == 0));
}

TEMPLATE_TEST_CASE("an empty part changes nothing, to the bit", "[numerics][C2]", float, double) {
  for (TestType lse : {TestType(0), TestType(-1e4), TestType(1e4), TestType(0.1)}) {
    auto const second_empty = merge_weights(lse, empty_row<TestType>);
    CHECK((second_empty.lse == lse && second_empty.first == 1 && second_empty.second == 0));
    auto const first_empty = merge_weights(empty_row<TestType>, lse);
    CHECK((first_empty.lse == lse && first_empty.first == 0 && first_empty.second == 1));
  }
}

TEMPLATE_TEST_CASE("parts whose log-sum-exps are far apart are merged without overflow", "[numerics][C3]", float,
                   double) {
  using A = TestType;
  for (A gap : {A(100), A(701), A(800), A(2e4), A(1e30)})
    for (A base : {A(0), A(1e4), A(-1e4)}) {
      CAPTURE(gap, base);
      auto const weights = merge_weights(base, base + gap);
      CHECK(weights.lse == base + gap);
      CHECK(weights.second == A(1));
      CHECK((weights.first >= 0 && weights.first < A(1e-40)));
    }
}

TEMPLATE_TEST_CASE("equal parts get equal weights at any height", "[numerics]", float, double) {
  using A = TestType;
  for (A lse : {A(0), A(1e4), A(-1e4), A(-1e30), A(1e30)}) {
    auto const weights = merge_weights(lse, lse);
    CHECK((weights.first == A(0.5) && weights.second == A(0.5)));
    CHECK(weights.lse == lse + std::log(A(2)));
  }
}

TEMPLATE_TEST_CASE("the order of two parts does not change a bit", "[numerics]", float, double) {
  std::mt19937 random(3);
  std::uniform_real_distribution<TestType> lse(-50, 50);
  for (int i = 0; i < 200; ++i) {
    TestType const a = lse(random), b = lse(random);
    auto const ab = merge_weights(a, b), ba = merge_weights(b, a);
    CHECK((ab.lse == ba.lse && ab.first == ba.second && ab.second == ba.first));
    CHECK(std::abs(ab.first + ab.second - 1) <= 2 * std::numeric_limits<TestType>::epsilon());
  }
}

TEST_CASE("NaN propagates", "[numerics]") {
  double const infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (double other : {0.0, -infinity, infinity}) {
    CHECK(std::isnan(merge_weights(infinity, other).first));
    CHECK(std::isnan(merge_weights(other, infinity).lse));
    CHECK(std::isnan(merge_weights(other, nan).lse));
  }
}

TEST_CASE("merge_rows refuses rows of different length", "[numerics]") {
  std::vector<double> into(3), from(4);
  double lse = 0;
  CHECK_THROWS_AS(merge_rows(std::span<double>(into), lse, std::span<double const>(from), 0.0), ShapeError);
  CHECK_THROWS_WITH(merge_rows(std::span<double>(into), lse, std::span<double const>(from), 0.0),
                    Catch::Matchers::ContainsSubstring("3") && Catch::Matchers::ContainsSubstring("4"));
}

TEST_CASE("merge_rows merges rows of a narrow type with weights of a wide type", "[numerics]") {
  std::array<Eigen::bfloat16, 2> into{Eigen::bfloat16(1.0f), Eigen::bfloat16(-2.0f)};
  std::array<Eigen::bfloat16, 2> const from{Eigen::bfloat16(3.0f), Eigen::bfloat16(6.0f)};
  float lse = 0;
  merge_rows(std::span<Eigen::bfloat16>(into), lse, std::span<Eigen::bfloat16 const>(from), 0.0f);
  CHECK((static_cast<float>(into[0]) == 2.0f && static_cast<float>(into[1]) == 2.0f));
  CHECK(lse == std::log(2.0f));
}

TEST_CASE("all orders of the blocks give the softmax of all keys", "[numerics]") {
  double const spread = GENERATE(1.0, 30.0, 1e4);
  auto const seed = static_cast<std::uint64_t>(GENERATE(range(1, 5)));
  std::size_t const dim = 3;
  auto const blocks = random_blocks(seed, 5, dim, spread);
  Part const expected = direct(blocks, dim);
  std::vector<Part> parts;
  for (Keys const& keys : blocks) parts.push_back(direct({keys}, dim));
  double const tolerance = bound(spread + 2, 5);

  std::array<std::size_t, 5> order{0, 1, 2, 3, 4};
  do {
    Part result{std::vector<double>(dim, 0.0), empty_row<double>};
    for (std::size_t block : order) result = merged(std::move(result), parts[block]);
    CHECK(close(result.lse, expected.lse, tolerance));
    for (std::size_t d = 0; d < dim; ++d) CHECK(std::abs(result.row[d] - expected.row[d]) <= tolerance);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("the merge rule is associative up to rounding", "[numerics]") {
  double const spread = GENERATE(1.0, 100.0, 1e4);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    auto const blocks = random_blocks(seed, 3, 2, spread);
    Part const a = direct({blocks[0]}, 2), b = direct({blocks[1]}, 2), c = direct({blocks[2]}, 2);
    Part const left = merged(merged(a, b), c), right = merged(a, merged(b, c));
    double const tolerance = 2 * bound(spread + 2, 2);
    CAPTURE(seed, spread);
    CHECK(close(left.lse, right.lse, tolerance));
    for (std::size_t d = 0; d < 2; ++d) CHECK(std::abs(left.row[d] - right.row[d]) <= tolerance);
  }
}
