#include "annulus/numerics/softmax.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

template <class A>
struct Sums {
  SoftmaxRow<A> row{};
  A value = A(0);  // un-normalised sum of weight * value, relative to the row's maximum

  void add(std::vector<A> const& logits, std::vector<A> const& values) {
    A largest = empty_row<A>;
    for (A logit : logits) largest = std::fmax(largest, logit);
    value *= row.raise(largest);
    for (std::size_t j = 0; j < logits.size(); ++j) {
      A const weight = row.weight(logits[j]);
      row.sum += weight;
      value += weight * values[j];
    }
  }
  void merge(Sums const& other) {
    auto const factors = row.merge(other.row);
    value = factors.own * value + factors.other * other.value;
  }
  A output() const { return row.normaliser() * value; }
};

/// Mean of the values under the softmax of the logits, and its log-sum-exp, in extended precision.
struct Expected {
  double output, lse;
};
template <class A>
Expected expected(std::vector<std::vector<A>> const& logits, std::vector<std::vector<A>> const& values) {
  long double maximum = -std::numeric_limits<long double>::infinity(), sum = 0, value = 0;
  for (auto const& block : logits)
    for (A logit : block) maximum = std::max(maximum, static_cast<long double>(logit));
  for (std::size_t b = 0; b < logits.size(); ++b)
    for (std::size_t j = 0; j < logits[b].size(); ++j) {
      long double const weight = std::exp(static_cast<long double>(logits[b][j]) - maximum);
      sum += weight;
      value += weight * static_cast<long double>(values[b][j]);
    }
  return {static_cast<double>(value / sum), static_cast<double>(maximum + std::log(sum))};
}

}  // namespace

TEMPLATE_TEST_CASE("a row that saw nothing is empty", "[numerics]", float, double) {
  SoftmaxRow<TestType> row;
  CHECK(row.lse() == empty_row<TestType>);
  CHECK(row.normaliser() == 0);
  CHECK(row.raise(empty_row<TestType>) == 0);
  CHECK(row.weight(empty_row<TestType>) == 0);
  CHECK(row.lse() == empty_row<TestType>);
}

TEMPLATE_TEST_CASE("raise rescales the sum and returns the factor", "[numerics]", float, double) {
  SoftmaxRow<TestType> row;
  row.raise(TestType(2));
  row.sum += row.weight(TestType(2));
  CHECK(row.raise(TestType(1)) == 1);
  CHECK(row.maximum == TestType(2));
  TestType const factor = row.raise(TestType(3));
  CHECK(factor == std::exp(TestType(-1)));
  CHECK(row.sum == factor);
  CHECK(row.lse() == Approx(2).epsilon(4 * std::numeric_limits<TestType>::epsilon()));
}

// Among the blocks: an empty one, one whose logits are all -inf (masked by a bias), and logits more than 700 apart.
TEMPLATE_TEST_CASE("all orders of blocks give the same softmax", "[numerics][C2][C3]", float, double) {
  using A = TestType;
  A const base = GENERATE(A(0), A(1e4), A(-1e4));
  std::vector<std::vector<A>> const logits{{},
                                           {empty_row<A>, empty_row<A>},
                                           {base + A(0.5), base - A(1.25), empty_row<A>},
                                           {base - A(900), base + A(2)},
                                           {base + A(1.75)}};
  std::vector<std::vector<A>> const values{{}, {A(7), A(8)}, {A(1), A(-2), A(9)}, {A(5), A(-0.5)}, {A(2)}};
  Expected const want = expected(logits, values);
  // The logits and their distances are exact, so each of a dozen operations errs by an epsilon of at most 9.
  double const tolerance = 12 * 9 * static_cast<double>(std::numeric_limits<A>::epsilon());
  double const lse_tolerance = tolerance + std::abs(want.lse) * static_cast<double>(std::numeric_limits<A>::epsilon());

  std::array<std::size_t, 5> order{0, 1, 2, 3, 4};
  do {
    Sums<A> folded, joined;
    for (std::size_t block : order) {
      folded.add(logits[block], values[block]);
      Sums<A> part;
      part.add(logits[block], values[block]);
      joined.merge(part);
    }
    for (Sums<A> const& sums : {folded, joined}) {
      CHECK(std::abs(static_cast<double>(sums.output()) - want.output) <= tolerance);
      CHECK(std::abs(static_cast<double>(sums.row.lse()) - want.lse) <= lse_tolerance);
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEMPLATE_TEST_CASE("masked blocks leave an empty row empty", "[numerics]", float, double) {
  Sums<TestType> sums;
  sums.add({empty_row<TestType>, empty_row<TestType>}, {TestType(3), TestType(4)});
  sums.merge(Sums<TestType>());
  CHECK(sums.row.lse() == empty_row<TestType>);
  CHECK(sums.output() == 0);
  sums.add({TestType(-1e30)}, {TestType(5)});
  CHECK(sums.output() == TestType(5));
  CHECK(sums.row.lse() == TestType(-1e30));
}

TEMPLATE_TEST_CASE("merge of two parts weights both correctly", "[numerics]", float, double) {
  Sums<TestType> low, high;
  low.add({TestType(0)}, {TestType(1)});
  high.add({TestType(0)}, {TestType(3)});
  auto const factors = low.row.merge(high.row);
  CHECK((factors.own == 1 && factors.other == 1));
  CHECK(low.row.sum == TestType(2));
}

TEST_CASE("the error does not grow with the number of blocks", "[numerics]") {
  // n equal logits, one at a time: the sum is exact, so the mean of equal values must be exact too.
  Sums<float> sums;
  for (int i = 0; i < 4096; ++i) sums.add({0.25f}, {1.5f});
  CHECK(sums.output() == 1.5f);
  CHECK(sums.row.lse() == Approx(0.25f + std::log(4096.0f)).epsilon(1e-7));
}

TEMPLATE_TEST_CASE("the remainder is the rounding error of lse", "[numerics]", float, double) {
  using A = TestType;
  A const epsilon = std::numeric_limits<A>::epsilon(), lowest = std::numeric_limits<A>::lowest();
  for (A maximum : {A(0), A(-0.25), A(3), A(-50), A(1e9), A(-1e30), lowest, -lowest})
    for (A sum : {A(1), A(1.5), A(3), A(1000), A(16777216)}) {
      SoftmaxRow<A> const row{maximum, sum};
      INFO("maximum " << maximum << ", sum " << sum);
      A const logarithm = std::log(sum), lse = row.lse(), remainder = row.lse_remainder();
      CHECK(lse == maximum + logarithm);
      CHECK(std::abs(remainder) <= std::max(epsilon * std::abs(lse), logarithm));
      // In a wider type, or where one term is absorbed, the sum of both parts is exact.
      if (sizeof(A) == 4 && std::abs(maximum) < 1e6)
        CHECK(static_cast<double>(lse) + static_cast<double>(remainder) ==
              static_cast<double>(maximum) + static_cast<double>(logarithm));
      if (std::abs(maximum) >= A(1e30)) CHECK((lse == maximum && remainder == logarithm));
      // All keys of a row with equal logits have the probability 1 / sum, however large the logit is.
      CHECK(std::abs(probability(maximum, lse, remainder) * sum - 1) <= 40 * epsilon);
    }
  CHECK(SoftmaxRow<A>{}.lse_remainder() == 0);
  CHECK(SoftmaxRow<A>{-empty_row<A>, A(2)}.lse_remainder() == 0);
  CHECK(probability(empty_row<A>, A(1), A(0)) == 0);
}

TEST_CASE("NaN logits propagate", "[numerics]") {
  Sums<double> sums;
  sums.add({1.0, std::nan("")}, {1.0, 1.0});
  CHECK(std::isnan(sums.output()));
  CHECK(std::isnan(sums.row.lse()));
}
