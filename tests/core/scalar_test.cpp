#include "annulus/core/scalar.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "support/catch.hpp"

using namespace annulus;

static_assert(Scalar<float> && Scalar<double> && Scalar<Eigen::half> && Scalar<Eigen::bfloat16>);
static_assert(!Scalar<int> && !Scalar<bool> && !Scalar<long double> && !Scalar<float const> && !Scalar<float&>);

static_assert(std::same_as<Accumulator<float>, float> && std::same_as<Accumulator<double>, double>);
static_assert(std::same_as<Accumulator<Eigen::half>, float> && std::same_as<Accumulator<Eigen::bfloat16>, float>);

TEMPLATE_TEST_CASE("the tag of a type has its size", "[core]", float, double, Eigen::half, Eigen::bfloat16) {
  CHECK(size_of(data_type<TestType>) == static_cast<int>(sizeof(TestType)));
}

TEST_CASE("each data type has a distinct tag and name", "[core]") {
  CHECK(name_of(data_type<float>) == "float32");
  CHECK(name_of(data_type<double>) == "float64");
  CHECK(name_of(data_type<Eigen::half>) == "float16");
  CHECK(name_of(data_type<Eigen::bfloat16>) == "bfloat16");
  CHECK(name_of(static_cast<DataType>(200)) == "unknown");
}

namespace {

/// Is no neighbour of `near` nearer to `value`, and is the last bit of `near` 0 in a tie?
template <class T>
bool is_nearest(double value, T near) {
  auto const bits = std::bit_cast<std::uint16_t>(near);
  double const distance = std::abs(static_cast<double>(near) - value);
  for (int step : {-1, 1}) {
    auto const neighbour = static_cast<double>(std::bit_cast<T>(static_cast<std::uint16_t>(bits + step)));
    double const other = std::abs(neighbour - value);
    if (other < distance || (other == distance && bits % 2 != 0)) return false;
  }
  return true;
}

}  // namespace

TEMPLATE_TEST_CASE("doubles are rounded once to 16 bits", "[core]", Eigen::half, Eigen::bfloat16) {
  constexpr int digits = std::same_as<TestType, Eigen::half> ? 11 : 8;
  std::mt19937_64 engine(7);
  std::uniform_real_distribution<double> mantissa(1, 2);
  for (int i = 0; i < 20000; ++i) {
    double const unit = std::ldexp(1.0, 1 - digits), start = std::floor(mantissa(engine) / unit) * unit;
    int const exponent = static_cast<int>(engine() % 20) - 10;  // normal in both types
    // Between two values of the type, half of them closer to the middle than a float can tell.
    double const beyond = i % 2 == 0 ? mantissa(engine) - 1 : 0.5 + std::ldexp(mantissa(engine) - 1.5, -36);
    double const value = std::ldexp(start + unit * beyond, exponent) * (i % 3 == 0 ? -1 : 1);
    CAPTURE(value);
    CHECK(is_nearest(value, detail::round_once<TestType>(value)));
  }
  double const middle = 1 + std::ldexp(1.0, -digits);
  CHECK(static_cast<double>(detail::round_once<TestType>(middle)) == 1);
  CHECK(static_cast<double>(detail::round_once<TestType>(middle + std::ldexp(1.0, -40))) ==
        1 + std::ldexp(2.0, -digits));
  CHECK(static_cast<double>(detail::round_once<TestType>(middle - std::ldexp(1.0, -40))) == 1);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(static_cast<double>(detail::round_once<TestType>(1e300)) == infinity);
  CHECK(static_cast<double>(detail::round_once<TestType>(-infinity)) == -infinity);
  CHECK(static_cast<double>(detail::round_once<TestType>(1e-300)) == 0);
  CHECK(std::isnan(static_cast<float>(detail::round_once<TestType>(std::nan("")))));
}
