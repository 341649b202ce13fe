#pragma once
// Simulated engines: execute(core, instruction) for every instruction of one core. The program is valid, so extents,
// types and memories of operands match; only what depends on data is checked.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "annulus/nki/simulate/core.hpp"

namespace annulus::nki::simulator {

// ScalarE and VectorE. TensorScalar and TensorCopy have the same results on both and on GpSimdE, TensorTensor and
// Memset on VectorE and GpSimdE.

/// Reduces n values into the accumulator register of a row, which holds a sum or a maximum. They are the float32
/// values: dst may be narrower.
inline void accumulate(float& result, ReduceCommand command, Operator op, float const* values, Index n) {
  if (command == ReduceCommand::idle) return;
  if (command != ReduceCommand::reduce) result = op == Operator::add ? 0.0f : -std::numeric_limits<float>::infinity();
  if (command != ReduceCommand::reset) apply(op, &result, reduce(op, values, n), &result, 1);
}

inline void execute(CoreState& core, Activation const& i) {
  Column const scale = column_of(core, i.scale), bias = column_of(core, i.bias);
  transform_rows<1>(core, i.dst, {&i.data}, [&](Index p, float* out, auto const& in, Index n) {
    float const* argument = in[0];
    if (scale[p] != 1.0f || bias[p] != 0.0f) {
      Eigen::Map<Eigen::ArrayXf>(out, n) = RowView(in[0], n) * scale[p] + bias[p];
      argument = out;
    }
    evaluate(i.op, argument, out, n);
    accumulate(core.scalar_sums[p], i.reduce_cmd, Operator::add, out, n);
  });
  write_column(core, i.reduce_res, core.scalar_sums);
}

inline void execute(CoreState& core, TensorTensor const& i) {
  transform_rows<2>(core, i.dst, {&i.data1, &i.data2},
                    [&](Index, float* out, auto const& in, Index n) { apply(i.op, in[0], in[1], out, n); });
}

inline void execute(CoreState& core, TensorScalar const& i) {
  Column const a = column_of(core, i.operand0), b = column_of(core, i.operand1);
  transform_rows<1>(core, i.dst, {&i.data}, [&](Index p, float* out, auto const& in, Index n) {
    apply(i.op0, in[0], a[p], out, n);
    if (i.op1) apply(*i.op1, out, b[p], out, n);
  });
}

inline void execute(CoreState& core, ScalarTensorTensor const& i) {
  Column const a = column_of(core, i.operand0);
  float* const first = core.scratch[3].of(i.dst.elements());
  transform_rows<2>(core, i.dst, {&i.data, &i.operand1}, [&](Index p, float* out, auto const& in, Index n) {
    // The first result is not stored in out, which may be operand1.
    apply(i.op0, in[0], a[p], first, n);
    apply(i.op1, first, in[1], out, n);
  });
}

inline void execute(CoreState& core, TensorReduce const& i) {
  Operand const data = core.operand(i.data), dst = core.operand(i.dst);
  Index const length = data.free.back().count;
  // All results are computed before the first is written, because dst may be a part of data.
  float* const results = core.scratch[1].of(dst.size());
  float* result = results;
  for (Index p = 0; p < data.rows; ++p) {
    float const* const row = contiguous_row(data, p, core.scratch[0]);
    for (Index j = 0; j < dst.elements; ++j)
      *result++ = (i.negate ? -1.0f : 1.0f) * reduce(i.op, row + j * length, length);
  }
  round_to(dst.type, results, dst.size());
  scatter_all(dst, results);
}

inline void execute(CoreState& core, TensorCopy const& i) { copy_rows(core, i.dst, i.src); }

/// The number of the indices start, start + 1 .. start + count - 1 that are below the bound.
inline Index number_below(float bound, float start, Index count) {
  return static_cast<Index>(std::clamp(std::ceil(bound) - start, 0.0f, static_cast<float>(count)));
}

inline void execute(CoreState& core, RangeSelect const& i) {
  Column const low = column_of(core, i.bound0), high = column_of(core, i.bound1);
  // Validation has bounded the indices, so that they are exact in float32.
  auto const start = static_cast<float>(core.walk.at(i.range_start));
  transform_rows<1>(core, i.dst, {&i.on_true_tile}, [&](Index p, float* out, auto const& in, Index n) {
    bool const is_range = low[p] < high[p];  // false for NaN
    Index const begin = is_range ? number_below(low[p], start, n) : n,
                end = is_range ? number_below(high[p], start, n) : n;
    if (in[0] != out) std::copy(in[0] + begin, in[0] + end, out + begin);
    std::fill(out, out + begin, i.on_false_value);
    std::fill(out + end, out + n, i.on_false_value);
    accumulate(core.vector_results[p], i.reduce_cmd, i.reduce_op, out, n);
  });
  write_column(core, i.reduce_res, core.vector_results);
}

inline void execute(CoreState& core, Reciprocal const& i) {
  transform_rows<1>(core, i.dst, {&i.data}, [&](Index, float* out, auto const& in, Index n) {
    for (Index j = 0; j < n; ++j) out[j] = 1.0f / in[0][j];
  });
}

inline void execute(CoreState& core, Memset const& i) {
  transform_rows<0>(core, i.dst, {},
                    [&](Index, float* out, auto const&, Index n) { std::fill(out, out + n, i.value); });
}

inline void execute(CoreState& core, StreamShuffle const& i) {
  Operand const src = core.operand(i.src), dst = core.operand(i.dst);
  float const* const row = gather_all(src, core.scratch[0]);
  for (Index p = 0; p < dst.rows; ++p) scatter(dst, p, row);
}

// GpSimdE.

/// Writes the places of a pattern that begins at `first`, as numbers.
inline void write_places(std::span<Axis const> pattern, Index first, float* out) {
  Runs::in_order(pattern).visit(first, [&](Index begin, Index count, Index step) {
    for (Index j = 0; j < count; ++j) *out++ = static_cast<float>(begin + j * step);
    return true;
  });
}

inline void execute(CoreState& core, Iota const& i) {
  Index const first = core.walk.at(i.offset);
  transform_rows<0>(core, i.dst, {}, [&](Index p, float* out, auto const&, Index) {
    write_places(i.pattern, first + p * i.channel_multiplier, out);
  });
}

// TensorE, which reads SBUF and writes PSUM, so that dst overlaps no operand.

/// The operand as a matrix of rows x elements, gathered in scratch memory if its rows are not contiguous.
inline ConstMatrix matrix_of(Operand const& operand, Scratch& scratch) {
  if (operand.contiguous) return {operand.base, operand.rows, operand.elements, operand.row_stride};
  return {gather_all(operand, scratch), operand.rows, operand.elements, operand.elements};
}

inline void execute(CoreState& core, MatMul const& i) {
  Operand const stationary = core.operand(i.stationary), moving = core.operand(i.moving), dst = core.operand(i.dst);
  ConstMatrix const a = matrix_of(stationary, core.scratch[0]), b = matrix_of(moving, core.scratch[1]);
  if (dst.contiguous && dst.type == ElementType::float32)
    return multiply_transposed(a, b, i.accumulate, dst.base, dst.row_stride, core.packed);
  float* const product = core.scratch[2].of(dst.size());
  multiply_transposed(a, b, false, product, dst.elements, core.packed);
  if (i.accumulate) {
    float const* const old = gather_all(dst, core.scratch[3]);
    apply(Operator::add, product, old, product, dst.size());
  }
  round_to(dst.type, product, dst.size());
  scatter_all(dst, product);
}

inline void execute(CoreState& core, Transpose const& i) {
  Operand const data = core.operand(i.data), dst = core.operand(i.dst);
  ConstMatrix const from = matrix_of(data, core.scratch[0]);
  float* const to = dst.contiguous ? dst.base : core.scratch[1].of(dst.size());
  Index const to_stride = dst.contiguous ? dst.row_stride : dst.elements;
  swap_axes({from.base, from.stride, 1}, {to, 1, to_stride}, data.rows, data.elements);
  if (!dst.contiguous) scatter_all(dst, to);
}

// DMA.

inline void execute(CoreState& core, DmaCopy const& i) {
  core.check_register(i.src, "src", Use::read);
  core.check_register(i.dst, "dst", Use::write);
  if (i.src.partitions() == i.dst.partitions()) return copy_rows(core, i.dst, i.src);
  Operand const src = core.operand(i.src), dst = core.operand(i.dst);
  float* const all = gather_all(src, core.scratch[0]);
  if (src.type != dst.type) round_to(dst.type, all, dst.size());
  scatter_all(dst, all);
}

/// Swaps the first and the last axis; the others keep their places.
inline void execute(CoreState& core, DmaTranspose const& i) {
  Operand const src = core.operand(i.src), dst = core.operand(i.dst);
  // Four axes: those that an operand lacks have one element and stand before the last.
  auto const axes_of = [](Operand const& operand) {
    std::array<Axis, 4> axes{Axis{operand.row_stride, operand.rows}, Axis{0, 1}, Axis{0, 1}, operand.free.back()};
    std::copy(operand.free.begin(), operand.free.end() - 1, axes.begin() + 1);
    return axes;
  };
  std::array<Axis, 4> from = axes_of(src), to = axes_of(dst);
  std::swap(to.front(), to.back());
  float const* base = src.base;
  if (dst.may_overlap(src)) {
    base = gather_all(src, core.scratch[0]);
    Index stride = 1;
    for (std::size_t axis = from.size(); axis-- > 0; stride *= from[axis].count) from[axis].stride = stride;
  }
  for (Index j = 0; j < from[1].count; ++j)
    for (Index k = 0; k < from[2].count; ++k)
      swap_axes({base + j * from[1].stride + k * from[2].stride, from[0].stride, from[3].stride},
                {dst.base + j * to[1].stride + k * to[2].stride, to[0].stride, to[3].stride}, from[0].count,
                from[3].count);
}

}  // namespace annulus::nki::simulator
