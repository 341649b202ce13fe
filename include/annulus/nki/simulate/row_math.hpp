#pragma once
// Operators and functions on arrays of floats. Results depend on the values alone, not on addresses or alignment.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "annulus/nki/program/operators.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki::simulator {

using RowView = Eigen::Map<Eigen::ArrayXf const>;

namespace row_math_detail {

/// out = a where compare(a, b), else b; NaN if either is NaN. The device's maximum of a NaN is not documented, so NaNs
/// are propagated here.
template <class A, class B, class Compare>
void choose(A const& a, B const& b, Compare compare, float* out, Index n) {
  for (Index i = 0; i < n; ++i) {
    float const x = a.coeff(i), y = b.coeff(i);
    out[i] = compare(x, y) || x != x ? x : y;
  }
}

template <class A, class B>
void apply(Operator op, A const& a, B const& b, float* to, Index n) {
  Eigen::Map<Eigen::ArrayXf> out(to, n);
  switch (op) {
    case Operator::add:
      out = a + b;
      return;
    case Operator::subtract:
      out = a - b;
      return;
    case Operator::multiply:
      out = a * b;
      return;
    case Operator::maximum:
      choose(a, b, std::greater<float>(), to, n);
      return;
    case Operator::minimum:
      choose(a, b, std::less<float>(), to, n);
      return;
    case Operator::equal:
      out = (a == b).template cast<float>();
      return;
    case Operator::not_equal:
      out = (a != b).template cast<float>();
      return;
    case Operator::greater:
      out = (a > b).template cast<float>();
      return;
    case Operator::greater_equal:
      out = (a >= b).template cast<float>();
      return;
    case Operator::less:
      out = (a < b).template cast<float>();
      return;
    case Operator::less_equal:
      out = (a <= b).template cast<float>();
      return;
    case Operator::logical_and:
      out = (a != 0.0f && b != 0.0f).template cast<float>();
      return;
    case Operator::logical_or:
      out = (a != 0.0f || b != 0.0f).template cast<float>();
      return;
  }
}

}  // namespace row_math_detail

/// out = a op b; out may be a or b.
inline void apply(Operator op, float const* a, float const* b, float* out, Index n) {
  row_math_detail::apply(op, RowView(a, n), RowView(b, n), out, n);
}
/// out = a op b, or b op a if `reverse`.
inline void apply(Operator op, float const* a, float b, bool reverse, float* out, Index n) {
  auto const constant = Eigen::ArrayXf::Constant(n, b);
  if (reverse)
    row_math_detail::apply(op, constant, RowView(a, n), out, n);
  else
    row_math_detail::apply(op, RowView(a, n), constant, out, n);
}
inline float apply(Operator op, float a, float b) {
  float out;
  apply(op, &a, b, false, &out, 1);
  return out;
}

/// Functions work on blocks of this many values, the last one padded, so that all values take the same code path.
inline constexpr Index block_size = 16;
using Block = Eigen::Array<float, block_size, 1>;

/// Applies a function of Block to n values; out may be in.
template <class OfBlock>
void map_blocks(float const* in, float* out, Index n, OfBlock&& function) {
  Index i = 0;
  for (; i + block_size <= n; i += block_size)
    Eigen::Map<Block>(out + i) = function(Block(Eigen::Map<Block const>(in + i)));
  if (i == n) return;
  Block last = Block::Ones();
  std::copy(in + i, in + n, last.data());
  last = function(last);
  std::copy(last.data(), last.data() + (n - i), out + i);
}

/// Sum in a fixed order that depends on n alone.
inline float sum_of(float const* values, Index n) {
  Block sums = Block::Zero();
  Index i = 0;
  for (; i + block_size <= n; i += block_size) sums += Eigen::Map<Block const>(values + i);
  for (Index lane = 0; i < n; ++i, ++lane) sums[lane] += values[i];
  for (Index half = block_size / 2; half > 0; half /= 2)
    for (Index lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  return sums[0];
}

inline float maximum_of(float const* values, Index n) { return RowView(values, n).maxCoeff<Eigen::PropagateNaN>(); }
inline float minimum_of(float const* values, Index n) { return RowView(values, n).minCoeff<Eigen::PropagateNaN>(); }

/// values[0] op values[1] op ..., for n >= 1.
inline float reduce(Operator op, float const* values, Index n) {
  if (op == Operator::add) return sum_of(values, n);
  if (op == Operator::maximum) return maximum_of(values, n);
  if (op == Operator::minimum) return minimum_of(values, n);
  check<Error>(!is_comparison(op), name_of(op), " does not reduce");
  float result = values[0];
  for (Index i = 1; i < n; ++i) result = apply(op, result, values[i]);
  return result;
}

/// Value of an accumulator register after a reset. Throws Error for operators without one.
inline float identity_of(Operator op) {
  switch (op) {
    case Operator::add:
      return 0.0f;
    case Operator::multiply:
      return 1.0f;
    case Operator::maximum:
      return -std::numeric_limits<float>::infinity();
    case Operator::minimum:
      return std::numeric_limits<float>::infinity();
    default:
      throw Error(message_of(name_of(op), " has no reset value"));
  }
}

/// out = exp(in); results that would be subnormal become 0, results beyond the largest float infinite.
inline void exp_of(float const* in, float* out, Index n) {
  // Eigen clamps to its own range instead.
  constexpr float smallest = -87.3365448f, largest = 88.7228394f;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  map_blocks(in, out, n, [](Block const& x) {
    // Above 88.3 Eigen returns infinity with some instruction sets, so exp(x) is computed as e * exp(x - 1) there.
    Block const above = (x > 88.0f).template cast<float>();
    Block y = (x - above).exp() * (1.0f + above * 1.71828183f);
    for (Index i = 0; i < block_size; ++i) {
      y[i] = x[i] < smallest ? 0.0f : y[i];
      y[i] = x[i] > largest ? infinity : y[i];
    }
    return y;
  });
}

/// Input domain [lowest, highest] of a ScalarE function, of the absolute value if `of_absolute`; outside it the
/// device's result is undefined.
struct Domain {
  float lowest, highest;
  bool of_absolute;
};
inline Domain domain_of(Function function) {
  switch (function) {
    case Function::log:
      return {0x1p-64f, 0x1p64f, false};
    case Function::sqrt:
      return {0x1p-116f, 0x1p118f, false};
    case Function::rsqrt:
      return {0x1p-87f, 0x1p97f, false};
    case Function::reciprocal:
      return {0x1p-42f, 0x1p42f, true};
    default:
      return {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity(), false};
  }
}

/// out = function(in); out may be in. Throws for a value outside the function's domain.
inline void evaluate(Function function, float const* in, float* out, Index n) {
  Domain const domain = domain_of(function);
  if (std::isfinite(domain.lowest))
    for (Index i = 0; i < n; ++i) {
      float const value = domain.of_absolute ? std::abs(in[i]) : in[i];
      check<Error>(value >= domain.lowest && value <= domain.highest, name_of(function), " of ", in[i],
                   "; ScalarE computes it ", domain.of_absolute ? "for absolute values " : "", "from ", domain.lowest,
                   " to ", domain.highest);
    }
  switch (function) {
    case Function::copy:
      if (in != out) std::copy(in, in + n, out);
      return;
    case Function::exp:
      exp_of(in, out, n);
      return;
    case Function::log:
      map_blocks(in, out, n, [](Block const& x) { return Block(x.log()); });
      return;
    case Function::tanh:
      map_blocks(in, out, n, [](Block const& x) { return Block(x.tanh()); });
      return;
    case Function::square:
      apply(Operator::multiply, in, in, out, n);
      return;
    case Function::abs:
      Eigen::Map<Eigen::ArrayXf>(out, n) = RowView(in, n).abs();
      return;
    case Function::sqrt:
      for (Index i = 0; i < n; ++i) out[i] = std::sqrt(in[i]);
      return;
    case Function::rsqrt:
      for (Index i = 0; i < n; ++i) out[i] = 1.0f / std::sqrt(in[i]);
      return;
    case Function::reciprocal:
      for (Index i = 0; i < n; ++i) out[i] = 1.0f / in[i];
      return;
  }
}

}  // namespace annulus::nki::simulator
