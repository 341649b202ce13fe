// Simulator: rounding of written values, to bfloat16 and float16 as in Eigen, to the nearest integer.

#include <Eigen/Core>
#include <bit>
#include <cstdint>
#include <limits>
#include <random>

#include "annulus/core/error.hpp"
#include "annulus/nki/simulate/arithmetic.hpp"
#include "support/catch.hpp"

namespace {

namespace simulator = annulus::nki::simulator;
using annulus::nki::ElementType;

/// Bit patterns around every exponent, and random ones; both signs, all kinds of NaN.
template <class Check>
void for_many_floats(Check&& check) {
  for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
    for (std::uint32_t high : {0x0u, 0x1u, 0x2u, 0x3u, 0x4u, 0x7u, 0x200u, 0x3ffu})
      for (std::uint32_t low : {0x0u, 0x1u, 0xfffu, 0x1000u, 0x1001u, 0x1fffu})
        for (std::uint32_t sign : {0u, 0x80000000u})
          check(std::bit_cast<float>(sign | exponent << 23 | high << 13 | low));
  std::mt19937 bits(7);
  for (int i = 0; i < 200000; ++i) check(std::bit_cast<float>(static_cast<std::uint32_t>(bits())));
}

template <class Narrow, class Round>
void compare(Round&& round) {
  int failures = 0;
  for_many_floats([&](float value) {
    float const expected = static_cast<float>(Narrow(value)), rounded = round(value);
    bool const equal = value != value ? rounded != rounded
                                      : std::bit_cast<std::uint32_t>(rounded) == std::bit_cast<std::uint32_t>(expected);
    if (!equal && ++failures < 5) {
      INFO("value " << value << ", bits " << std::bit_cast<std::uint32_t>(value) << ", expected " << expected
                    << ", got " << rounded);
      CHECK(equal);
    }
  });
  CHECK(failures == 0);
}

}  // namespace

TEST_CASE("bfloat16 rounds to nearest, ties to even") {
  compare<Eigen::bfloat16>([](float value) { return simulator::to_bfloat16(value); });
  CHECK(simulator::to_bfloat16(-3.4028235e38f) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("float16 rounds to nearest, ties to even, including subnormals") {
  compare<Eigen::half>([](float value) { return simulator::to_float16(value); });
  CHECK(simulator::to_float16(-3.4028235e38f) == -std::numeric_limits<float>::infinity());
  CHECK(simulator::to_float16(65519.99f) == 65504.0f);
  CHECK(simulator::to_float16(0x1p-25f) == 0.0f);
  CHECK(simulator::to_float16(0x1.000002p-25f) == 0x1p-24f);
}

TEST_CASE("An array is rounded like each of its values") {
  for (auto const type : {ElementType::float32, ElementType::bfloat16, ElementType::float16}) {
    std::vector<float> values, rounded;
    std::mt19937 bits(3);
    for (int i = 0; i < 37; ++i) values.push_back(static_cast<float>(bits() >> 8) * 0x1p-20f - 8);
    rounded = values;
    simulator::round_to(type, rounded.data(), 37);
    for (std::size_t i = 0; i < values.size(); ++i)
      CHECK(rounded[i] == (type == ElementType::bfloat16  ? simulator::to_bfloat16(values[i])
                           : type == ElementType::float16 ? simulator::to_float16(values[i])
                                                          : values[i]));
  }
}
