#pragma once
// Reproducible operands: uniform with variance 1, rounded to the element type.

#include <annulus/tensor/eigen.hpp>

#include <cmath>
#include <cstdint>

#include "attention/attention_case.hpp"

namespace annulus_bench {

using FloatTensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

/// Uniform value in [-sqrt(3), sqrt(3)] that depends on stream and place alone (the finaliser of splitmix64).
inline float value_at(std::uint64_t stream, std::uint64_t place) {
  std::uint64_t x = (stream << 40) + place + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<float>(x >> 40) * (2 * 1.7320508f / 16777216.0f) - 1.7320508f;
}

inline float rounded_to(DataType type, float value) {
  if (type == DataType::bfloat16) return static_cast<float>(Eigen::bfloat16(value));
  if (type == DataType::float16) return static_cast<float>(Eigen::half(value));
  return value;
}

/// Operands of a case, [1, tokens, heads, head_dim] each. The case's element type holds the values exactly.
struct Operands {
  FloatTensor q, k, v, dout;

  explicit Operands(AttentionCase const& c) {
    std::uint64_t stream = 0;
    for (FloatTensor* tensor : {&q, &k, &v, &dout}) {
      *tensor = FloatTensor(1, c.tokens, c.heads, c.head_dim);
      for (Index i = 0; i < tensor->size(); ++i)
        tensor->data()[i] = rounded_to(c.type, value_at(stream, static_cast<std::uint64_t>(i)));
      ++stream;
    }
  }
};

}  // namespace annulus_bench
