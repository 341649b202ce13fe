#include "annulus/core/scalar.hpp"

#include <cstdint>
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
