#pragma once
// Arithmetic of the simulated engines on arrays of floats: rounding to an element type, operators, functions and
// reductions, matrix products, transposition. Results depend on the values alone, not on addresses or alignment.

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "annulus/nki/program/instruction.hpp"

namespace annulus::nki::simulator {

/// Aligned for Eigen's vector instructions, so that results do not depend on addresses.
using Floats = std::vector<float, Eigen::aligned_allocator<float>>;

/// Memory for intermediate values, reused from instruction to instruction.
class Scratch {
 public:
  /// Storage for n floats with unspecified content; valid until the next call.
  float* of(Index n) {
    if (static_cast<Index>(storage_.size()) < n) storage_.resize(static_cast<std::size_t>(n));
    return storage_.data();
  }

 private:
  Floats storage_;
};

/// Nearest bfloat16 and float16; values beyond the largest become infinite.
inline float to_bfloat16(float value) { return static_cast<float>(Eigen::bfloat16(value)); }
inline float to_float16(float value) { return static_cast<float>(Eigen::half(value)); }

/// Rounds n values in place.
inline void round_to(ElementType type, float* values, Index n) {
  if (type == ElementType::float32) return;
  auto const each = [&](auto round) {
    for (Index i = 0; i < n; ++i) values[i] = round(values[i]);
  };
  if (type == ElementType::bfloat16) return each([](float value) { return to_bfloat16(value); });
  if (type == ElementType::float16) return each([](float value) { return to_float16(value); });
  each([](float value) { return std::nearbyint(value); });
}

using RowView = Eigen::Map<Eigen::ArrayXf const>;

namespace arithmetic_detail {

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
  auto const store = [&](auto const& values) { Eigen::Map<Eigen::ArrayXf>(to, n) = values.template cast<float>(); };
  switch (op) {
    case Operator::add:
      return store(a + b);
    case Operator::subtract:
      return store(a - b);
    case Operator::multiply:
      return store(a * b);
    case Operator::maximum:
      return choose(a, b, std::greater<float>(), to, n);
    case Operator::minimum:
      return choose(a, b, std::less<float>(), to, n);
    case Operator::equal:
      return store(a == b);
    case Operator::greater:
      return store(a > b);
    case Operator::greater_equal:
      return store(a >= b);
    case Operator::less:
      return store(a < b);
  }
}

}  // namespace arithmetic_detail

/// out = a op b; out may be a or b.
inline void apply(Operator op, float const* a, float const* b, float* out, Index n) {
  arithmetic_detail::apply(op, RowView(a, n), RowView(b, n), out, n);
}
inline void apply(Operator op, float const* a, float b, float* out, Index n) {
  arithmetic_detail::apply(op, RowView(a, n), Eigen::ArrayXf::Constant(n, b), out, n);
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

/// values[0] op values[1] op ..., for n >= 1.
inline float reduce(Operator op, float const* values, Index n) {
  if (op == Operator::add) return sum_of(values, n);
  if (op == Operator::maximum) return RowView(values, n).maxCoeff<Eigen::PropagateNaN>();
  if (op == Operator::minimum) return RowView(values, n).minCoeff<Eigen::PropagateNaN>();
  float result = values[0];
  for (Index i = 1; i < n; ++i) apply(op, &result, values[i], &result, 1);
  return result;
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

/// out = function(in); out may be in. Throws for a value outside the function's domain, where the device's result is
/// undefined.
inline void evaluate(Function function, float const* in, float* out, Index n) {
  switch (function) {
    case Function::copy:
      if (in != out) std::copy(in, in + n, out);
      return;
    case Function::exp:
      return exp_of(in, out, n);
    case Function::log:
      for (Index i = 0; i < n; ++i)
        detail::check<Error>(in[i] >= 0x1p-64f && in[i] <= 0x1p64f, "log of ", in[i], "; ScalarE computes it from ",
                             0x1p-64f, " to ", 0x1p64f);
      return map_blocks(in, out, n, [](Block const& x) { return Block(x.log()); });
    case Function::tanh:
      return map_blocks(in, out, n, [](Block const& x) { return Block(x.tanh()); });
  }
}

/// A matrix of rows x columns whose element (i, j) is at base[i * stride + j].
struct ConstMatrix {
  float const* base;
  Index rows, columns, stride;
};

namespace arithmetic_detail {

// The block of the result that is held in registers, as large as they allow.
#if defined(__AVX512F__)
inline constexpr Index lanes = 16, block_rows = 8;
#elif defined(__AVX__)
inline constexpr Index lanes = 8, block_rows = 6;
#else
inline constexpr Index lanes = 4, block_rows = 6;
#endif
inline constexpr Index vectors = 2, block_columns = vectors * lanes;
inline constexpr Index panels_at_once = 4;  // so that a cache line is used for several panels while it is cached
using Lanes [[gnu::vector_size(lanes * sizeof(float))]] = float;

/// Packs `panels` panels of `width` columns each, from column `begin` on: one panel after the other, each row by row.
/// Columns beyond the matrix are 0.
template <Index width, Index panels>
void pack(ConstMatrix const& from, Index begin, float* out) {
  bool const whole = begin + panels * width <= from.columns;
  for (Index k = 0; k < from.rows; ++k)
    for (Index panel = 0; panel < panels; ++panel) {
      Index const column = begin + panel * width;
      float const* const row = from.base + k * from.stride + column;
      float* const to = out + (panel * from.rows + k) * width;
      if (whole)
        std::memcpy(to, row, width * sizeof(float));
      else
        for (Index j = 0; j < width; ++j) to[j] = column + j < from.columns ? row[j] : 0.0f;
    }
}

/// out[block_rows, block_columns] = sum over k of a[k, row] * b[k, column], for packed a and b.
inline void multiply_block(Index depth, float const* a, float const* b, float* out) {
  Lanes sums[block_rows][vectors] = {};
  for (Index k = 0; k < depth; ++k, a += block_rows, b += block_columns) {
    Lanes right[vectors];
    for (Index v = 0; v < vectors; ++v) std::memcpy(&right[v], b + v * lanes, sizeof(Lanes));
    for (Index row = 0; row < block_rows; ++row)
      for (Index v = 0; v < vectors; ++v) sums[row][v] += a[row] * right[v];
  }
  std::memcpy(out, sums, sizeof sums);
}

}  // namespace arithmetic_detail

/// to[m, n] = sum over k of a[k, m] * b[k, n], or += if `accumulate`; row m begins at to + m * stride. Every element is
/// one chain of multiply-adds in the order of k, so that it does not depend on the shapes of the operands. `packed` is
/// working storage.
inline void multiply_transposed(ConstMatrix const& a, ConstMatrix const& b, bool accumulate, float* to, Index stride,
                                Scratch& packed) {
  using namespace arithmetic_detail;
  Index const depth = a.rows, blocks = detail::ceil_divide(a.columns, block_rows);
  Index const panels = detail::ceil_divide(blocks, panels_at_once) * panels_at_once;
  float* const a_packed = packed.of(depth * (panels * block_rows + block_columns));
  float* const b_packed = a_packed + depth * panels * block_rows;
  for (Index i = 0; i < panels; i += panels_at_once)
    pack<block_rows, panels_at_once>(a, i * block_rows, a_packed + i * block_rows * depth);
  for (Index column = 0; column < b.columns; column += block_columns) {
    pack<block_columns, 1>(b, column, b_packed);
    Index const width = std::min(block_columns, b.columns - column);
    for (Index i = 0; i < blocks; ++i) {
      alignas(64) float block[block_rows * block_columns];
      multiply_block(depth, a_packed + i * block_rows * depth, b_packed, block);
      Index const height = std::min(block_rows, a.columns - i * block_rows);
      for (Index row = 0; row < height; ++row) {
        float* const out = to + (i * block_rows + row) * stride + column;
        float const* const from = block + row * block_columns;
        if (accumulate)
          for (Index j = 0; j < width; ++j) out[j] += from[j];
        else if (width == block_columns)
          std::memcpy(out, from, block_columns * sizeof(float));
        else
          std::copy(from, from + width, out);
      }
    }
  }
}

/// A two-dimensional array whose element (i, j) is at base[i * i_stride + j * j_stride].
template <class T>
struct Plane {
  T* base;
  Index i_stride, j_stride;
};

/// to(i, j) = from(i, j) for i < i_count, j < j_count, in blocks that stay in the cache in both orders.
inline void swap_axes(Plane<float const> from, Plane<float> to, Index i_count, Index j_count) {
  constexpr Index block = 8;
  auto const copy = [&](Index i_begin, Index j_begin, Index i_size, Index j_size) {
    float const* const source = from.base + i_begin * from.i_stride + j_begin * from.j_stride;
    float* const target = to.base + i_begin * to.i_stride + j_begin * to.j_stride;
    for (Index j = 0; j < j_size; ++j)
      for (Index i = 0; i < i_size; ++i)
        target[i * to.i_stride + j * to.j_stride] = source[i * from.i_stride + j * from.j_stride];
  };
  for (Index i = 0; i < i_count; i += block)
    for (Index j = 0; j < j_count; j += block)
      if (i + block <= i_count && j + block <= j_count)
        copy(i, j, block, block);  // constant size: unrolled
      else
        copy(i, j, std::min(block, i_count - i), std::min(block, j_count - j));
}

}  // namespace annulus::nki::simulator
