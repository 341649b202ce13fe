#pragma once
// Rounding of floats to an element type: to nearest, ties to even. The results are stored as floats.

#include <bit>
#include <cmath>
#include <cstdint>

#include "annulus/nki/program/access.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki::simulator {

/// Nearest bfloat16; values beyond its largest become infinite.
inline float to_bfloat16(float value) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  bool const is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  std::uint32_t const rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return std::bit_cast<float>((is_nan ? bits | 0x00400000u : rounded) & 0xffff0000u);
}

/// Nearest float16, including subnormals; values beyond its largest become infinite.
inline float to_float16(float value) {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  std::uint32_t const sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
  std::uint32_t const normal = (size + 0xfffu + ((size >> 13) & 1u)) & 0xffffe000u;
  // The spacing of floats at 0.5 is that of subnormal float16 values.
  auto const subnormal = std::bit_cast<std::uint32_t>((std::bit_cast<float>(size) + 0.5f) - 0.5f);
  std::uint32_t result = size < 0x38800000u ? subnormal : normal;
  result = result >= 0x47800000u ? 0x7f800000u : result;
  result = size > 0x7f800000u ? 0x7fc00000u : result;
  return std::bit_cast<float>(result | sign);
}

/// Nearest integer. Throws Error outside [lowest, highest]: the hardware's result there is not documented, and a float
/// cannot represent all integers beyond 2^24.
inline float to_integer(float value, float lowest, float highest, ElementType type) {
  float const nearest = std::nearbyint(value);
  check<Error>(nearest >= lowest && nearest <= highest, "writes ", value, " as ", name_of(type), ", which holds ",
               lowest, " to ", highest, " here");
  return nearest;
}

/// Rounds n values in place. Throws Error for an integer type that cannot hold a value.
inline void round_to(ElementType type, float* values, Index n) {
  switch (type) {
    case ElementType::float32:
      return;
    case ElementType::bfloat16:
      for (Index i = 0; i < n; ++i) values[i] = to_bfloat16(values[i]);
      return;
    case ElementType::float16:
      for (Index i = 0; i < n; ++i) values[i] = to_float16(values[i]);
      return;
    case ElementType::int32:
      for (Index i = 0; i < n; ++i) values[i] = to_integer(values[i], -16777216.0f, 16777216.0f, type);
      return;
    case ElementType::uint8:
      for (Index i = 0; i < n; ++i) values[i] = to_integer(values[i], 0.0f, 255.0f, type);
      return;
  }
}

}  // namespace annulus::nki::simulator
