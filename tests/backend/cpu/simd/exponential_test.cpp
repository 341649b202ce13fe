// Accuracy of 2^x and tanh over their whole range.

#include <algorithm>
#include <annulus/backend/cpu/panel/logits.hpp>
#include <annulus/backend/cpu/simd/exponential.hpp>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "support/catch.hpp"
#include "support/larger_error.hpp"

using namespace annulus::cpu::detail;
using annulus_test::larger_error;

namespace {

template <class A, class Function>
std::vector<A> lanes_of(std::vector<A> values, Function&& function) {
  std::size_t const lanes = Vector<A>::lanes, count = values.size();
  values.resize((count + lanes - 1) / lanes * lanes);
  for (std::size_t i = 0; i < values.size(); i += lanes)
    function(Vector<A>::load(values.data() + i)).store(values.data() + i);
  values.resize(count);
  return values;
}

/// |seen - exact| in units in the last place of a number of type A at `exact`.
template <class A>
double error_in_units(A seen, long double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  exponent = std::max(exponent, std::numeric_limits<A>::min_exponent);
  return static_cast<double>(std::abs(static_cast<long double>(seen) - exact) /
                             std::ldexp(1.0L, exponent - std::numeric_limits<A>::digits));
}

template <class A>
double worst_exponential(std::vector<A> const& arguments) {
  auto const seen = lanes_of(arguments, [](Vector<A> x) { return exponential2(x); });
  double worst = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    worst = larger_error(worst, error_in_units(seen[i], std::exp2(static_cast<long double>(arguments[i]))));
  return worst;
}

}  // namespace

TEST_CASE("2^x of floats is within its bound wherever the result is normal", "[cpu]") {
  // The error of interpolation, 8.1e-8 of up to 2, and two roundings of at most half a unit.
#if defined(__AVX512DQ__)
  constexpr double bound = 2.36;
#else
  constexpr double bound = 2;
#endif
  std::vector<float> arguments;
  // Every 257th float from -0 to -126.
  for (std::uint32_t bits = 0x80000000u; bits <= std::bit_cast<std::uint32_t>(-126.0f); bits += 257)
    arguments.push_back(std::bit_cast<float>(bits));
  for (float x = 1e-6f; x < 100; x *= 1.0001f) arguments.push_back(x);
  CHECK(worst_exponential(arguments) <= bound);
}

TEST_CASE("2^x of doubles is within 2 units in the last place wherever the result is normal", "[cpu]") {
  std::vector<double> arguments{0.0};
  for (double x = 1e-300; x < 1; x *= 1.9) arguments.push_back(-x);
  for (double x = 0; x > -1022; x -= 0.00137) arguments.push_back(x);
  CHECK(worst_exponential(arguments) <= 2);
}

TEMPLATE_TEST_CASE("2^x at the ends of its range", "[cpu]", float, double) {
  using Limits = std::numeric_limits<TestType>;
  auto const lowest = static_cast<TestType>(Limits::min_exponent - 1);
  auto const seen = lanes_of<TestType>(
      {0, -Limits::infinity(), Limits::quiet_NaN(), lowest, lowest - TestType(0.5), lowest - 100, Limits::lowest(), -1},
      [](Vector<TestType> x) { return exponential2(x); });
  CHECK(seen[0] == 1);
  CHECK(seen[1] == 0);
  CHECK(std::isnan(seen[2]));
  CHECK(seen[3] == Limits::min());
  CHECK(seen[4] >= 0);
  CHECK(seen[4] < Limits::min());
  CHECK(seen[5] == 0);
  CHECK(seen[6] == 0);
  CHECK(seen[7] == TestType(0.5));
}

TEMPLATE_TEST_CASE("tanh is within 4 units in the last place, also near 0", "[cpu]", float, double) {
  std::vector<TestType> arguments;
  for (TestType x = -25; x < 25; x += TestType(0.000731)) arguments.push_back(x);
  for (TestType x = 1; x > TestType(1e-30); x *= TestType(0.93)) arguments.insert(arguments.end(), {x, -x});
  auto const seen = lanes_of(arguments, [](Vector<TestType> x) { return HyperbolicTangent<TestType>::of(x).value; });
  double worst = 0;
  for (std::size_t i = 0; i < seen.size(); ++i)
    worst = larger_error(worst, error_in_units(seen[i], std::tanh(static_cast<long double>(arguments[i]))));
  CHECK(worst <= 4);
  auto const ends =
      lanes_of<TestType>({0, std::numeric_limits<TestType>::infinity(), -std::numeric_limits<TestType>::infinity()},
                         [](Vector<TestType> x) { return HyperbolicTangent<TestType>::of(x).value; });
  CHECK(ends[0] == 0);
  CHECK(ends[1] == 1);
  CHECK(ends[2] == -1);
}

TEMPLATE_TEST_CASE("the slope of tanh is within 8 units in the last place, also where tanh is nearly 1", "[cpu]", float,
                   double) {
  std::vector<TestType> arguments;
  // Beyond the edge tanh is 1 in this type, and the slope stays constant.
  TestType const edge = sizeof(TestType) == 8 ? 19 : 9;
  for (TestType x = -edge; x < edge; x += TestType(0.000731)) arguments.push_back(x);
  auto const seen = lanes_of(arguments, [](Vector<TestType> x) { return HyperbolicTangent<TestType>::of(x).slope(); });
  double worst = 0;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    long double const inverse = 1 / std::cosh(static_cast<long double>(arguments[i]));
    worst = larger_error(worst, error_in_units(seen[i], inverse * inverse));
  }
  CHECK(worst <= 8);
}

namespace {

/// Every 257th float of both signs from 0 on, and both infinities.
std::vector<float> floats_of_all_sizes() {
  std::vector<float> floats;
  for (std::uint32_t bits = 0; bits <= 0x7f800000u; bits += 257)
    for (std::uint32_t const sign : {0u, 0x80000000u}) floats.push_back(std::bit_cast<float>(bits | sign));
  constexpr float infinity = std::numeric_limits<float>::infinity();
  floats.insert(floats.end(), {infinity, -infinity});
  return floats;
}

ShortTangent short_tangent_of(Vector<float> x) {
  return ShortTangent::of(x * Vector<float>::of(ShortTangent::argument_scale));
}

}  // namespace

TEST_CASE("the short tanh is within 2^-21, and its slope within 2^-18 of itself where tanh is not 1", "[cpu]") {
  std::vector<float> const arguments = floats_of_all_sizes();
  auto const values =
      lanes_of(arguments, [](Vector<float> x) { return short_tangent_of(x).times(Vector<float>::of(1)); });
  auto const slopes = lanes_of(arguments, [](Vector<float> x) { return short_tangent_of(x).slope(); });
  double worst_value = 0, worst_slope = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    double const x = arguments[i], inverse = 1 / std::cosh(x), slope = inverse * inverse;
    worst_value = larger_error(worst_value, std::abs(values[i] - std::tanh(x)));
    if (std::abs(x) <= 9) {
      worst_slope = larger_error(worst_slope, std::abs(slopes[i] - slope) / slope);
    } else if (!(slopes[i] >= 0 && slopes[i] <= 0x1p-23f)) {
      worst_slope = 1;
    }
  }
  INFO("errors 2^" << std::log2(worst_value) << " and 2^" << std::log2(worst_slope));
  CHECK(worst_value <= 0x1p-21);
  CHECK(worst_slope <= 0x1p-18);
}

TEST_CASE("the short tanh at the ends of its range", "[cpu]") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  auto const ends = lanes_of<float>({0, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()},
                                    [](Vector<float> x) { return short_tangent_of(x).times(Vector<float>::of(3)); });
  CHECK(ends[0] == 0);
  CHECK(ends[1] == 3);
  CHECK(ends[2] == -3);
  CHECK(std::isnan(ends[3]));
}

namespace {

/// Largest error of logits that cap() makes of products of operands of type T.
template <class T>
double error_of_cap(float softcap) {
  std::vector<float> logits;
  for (int i = -4096; i < 4096; ++i) logits.push_back(softcap * static_cast<float>(i) / 1024);
  std::vector<float> const products = logits;
  cap<T>(logits.data(), static_cast<annulus::Index>(logits.size()), 0.5f, softcap, static_cast<float*>(nullptr),
         static_cast<Vector<float>*>(nullptr));
  double worst = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    double const expected = softcap * std::tanh(0.5 * products[i] / softcap);
    if (double const error = std::abs(logits[i] - expected); !(error <= worst)) worst = error;
  }
  return worst;
}

}  // namespace

TEST_CASE("logits of 16-bit operands err by at most 2^-15 by a soft cap up to 64, those of others by rounding",
          "[cpu]") {
  CHECK(error_of_cap<Eigen::bfloat16>(64) <= 0x1p-15);
  CHECK(error_of_cap<Eigen::half>(30) <= 0x1p-15);
  for (float const softcap : {1.0f, 64.0f, 65.0f, 4096.0f}) {
    double const few_units = 8 * 0x1p-24 * softcap;
    CHECK(error_of_cap<float>(softcap) <= few_units);
    if (softcap > 64) CHECK(error_of_cap<Eigen::bfloat16>(softcap) <= few_units);
  }
}

TEST_CASE("a product of 0 is a logit of 0 for any scale and soft cap", "[cpu]") {
  std::vector<float> logits(Vector<float>::lanes, 0.0f);
  cap<Eigen::bfloat16>(logits.data(), Vector<float>::lanes, 3e38f, 1e-3f, static_cast<float*>(nullptr),
                       static_cast<Vector<float>*>(nullptr));
  CHECK(std::ranges::all_of(logits, [](float logit) { return logit == 0; }));
}
