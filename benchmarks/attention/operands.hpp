#pragma once
// Reproducible operands: uniform with variance 1, rounded to the element type.

#include <annulus/tensor/eigen.hpp>

#include <cstdint>

#include "attention/attention_case.hpp"

namespace annulus_bench {

using FloatTensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

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

/// Element of the bias [1, heads, queries, keys] of a case.
inline float bias_at(AttentionCase const& c, Index head, Index query, Index key) {
  return rounded_to(c.type, value_at(10, static_cast<std::uint64_t>((head * c.tokens + query) * c.tokens + key)));
}

}  // namespace annulus_bench
