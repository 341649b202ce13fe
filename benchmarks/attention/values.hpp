#pragma once
// Reproducible random values.

#include <cstdint>

namespace annulus_bench {

/// Uniform value in [-sqrt(3), sqrt(3)] that depends on stream and place alone (the finaliser of splitmix64).
inline float value_at(std::uint64_t stream, std::uint64_t place) {
  std::uint64_t x = (stream << 40) + place + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(x >> 40) * (2 * 1.7320508f / 16777216.0f) - 1.7320508f;
}

}  // namespace annulus_bench
