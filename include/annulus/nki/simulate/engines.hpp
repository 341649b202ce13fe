#pragma once
// Simulated engines: execute(core, instruction) for every instruction of one core. The program is valid, so extents, types
// and memories of operands match; only what depends on data is checked.

#include <algorithm>
#include <array>
#include <vector>

#include "annulus/nki/simulate/core.hpp"

namespace annulus::nki::simulator {

// ScalarE and VectorE. TensorScalar and TensorCopy have the same results on both and on GpSimdE, TensorTensor and Memset
// on VectorE and GpSimdE.

constexpr bool reduces(ReduceCommand command) {
  return command == ReduceCommand::reduce || command == ReduceCommand::reset_reduce;
}

/// Accumulates reduced() into the accumulator register of row p.
template <class Reduced>
void accumulate(Column& results, ReduceCommand command, Operator op, Index p, Reduced&& reduced) {
  if (command == ReduceCommand::idle) return;
  if (command != ReduceCommand::reduce) results[p] = identity_of(op);
  if (command != ReduceCommand::reset) results[p] = apply(op, results[p], reduced());
}

inline void execute(CoreState& core, Activation const& i) {
  Operand const data = core.operand(i.data), dst = core.operand(i.dst);
  Column const scale = column_of(core, i.scale), bias = column_of(core, i.bias);
  transform_rows<1>(core, dst, {data}, [&](Index p, float* out, auto const& in) {
    float const* argument = in[0];
    if (scale[p] != 1.0f || bias[p] != 0.0f) {
      Eigen::Map<Eigen::ArrayXf>(out, dst.elements) = RowView(in[0], dst.elements) * scale[p] + bias[p];
      argument = out;
    }
    evaluate(i.op, argument, out, dst.elements);
    // The float32 values are summed: dst may be narrower.
    accumulate(core.scalar_sums, i.reduce_cmd, Operator::add, p, [&] { return sum_of(out, dst.elements); });
  });
  write_column(core, i.reduce_res, core.scalar_sums);
}

inline void execute(CoreState& core, TensorTensor const& i) {
  Operand const data1 = core.operand(i.data1), data2 = core.operand(i.data2), dst = core.operand(i.dst);
  transform_rows<2>(core, dst, {data1, data2},
                    [&](Index, float* out, auto const& in) { apply(i.op, in[0], in[1], out, dst.elements); });
}

inline void execute(CoreState& core, TensorScalar const& i) {
  Operand const data = core.operand(i.data), dst = core.operand(i.dst);
  Column const a = column_of(core, i.operand0), b = column_of(core, i.operand1);
  transform_rows<1>(core, dst, {data}, [&](Index p, float* out, auto const& in) {
    apply(i.op0, in[0], a[p], i.reverse0, out, dst.elements);
    if (i.op1) apply(*i.op1, out, b[p], i.reverse1, out, dst.elements);
  });
}

inline void execute(CoreState& core, ScalarTensorTensor const& i) {
  Operand const data = core.operand(i.data), tensor = core.operand(i.operand1), dst = core.operand(i.dst);
  Column const a = column_of(core, i.operand0);
  float* const first = core.scratch[3].of(dst.elements);
  transform_rows<2>(core, dst, {data, tensor}, [&](Index p, float* out, auto const& in) {
    // The first result is not stored in out, which may be operand1.
    apply(i.op0, in[0], a[p], i.reverse0, first, dst.elements);
    if (i.reverse1)
      apply(i.op1, in[1], first, out, dst.elements);
    else
      apply(i.op1, first, in[1], out, dst.elements);
  });
}

inline void execute(CoreState& core, TensorScalarReduce const& i) {
  Operand const data = core.operand(i.data), dst = core.operand(i.dst);
  Column const a = column_of(core, i.operand0);
  transform_rows<1>(core, dst, {data}, [&](Index p, float* out, auto const& in) {
    apply(i.op0, in[0], a[p], false, out, dst.elements);
    accumulate(core.vector_results, ReduceCommand::reset_reduce, i.reduce_op, p,
               [&] { return reduce(i.reduce_op, out, dst.elements); });
  });
  write_column(core, i.reduce_res, core.vector_results);
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

inline void execute(CoreState& core, TensorCopy const& i) { copy_rows(core, core.operand(i.dst), core.operand(i.src)); }

/// The elements [begin, end) of a row that pass `index op bound`; an interval because the operators are monotonic.
struct Interval {
  Index begin, end;
};
inline Interval passing(Operator op, Index start, float bound, Index n) {
  if (bound != bound) return {n, n};
  auto const number_of = [&](auto holds) {
    Index low = 0, high = n;
    while (low < high) {
      Index const middle = (low + high) / 2;
      if (holds(static_cast<float>(start + middle)))
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  };
  Index const below = number_of([&](float index) { return index < bound; });
  Index const up_to = number_of([&](float index) { return index <= bound; });
  switch (op) {
    case Operator::less:
      return {0, below};
    case Operator::less_equal:
      return {0, up_to};
    case Operator::greater:
      return {up_to, n};
    case Operator::greater_equal:
      return {below, n};
    default:  // equal
      return {below, up_to};
  }
}

inline void execute(CoreState& core, RangeSelect const& i) {
  Operand const data = core.operand(i.on_true_tile), dst = core.operand(i.dst);
  Column const low = column_of(core, i.bound0), high = column_of(core, i.bound1);
  Index const start = core.walk.at(i.range_start);
  transform_rows<1>(core, dst, {data}, [&](Index p, float* out, auto const& in) {
    Interval const first = passing(i.comp_op0, start, low[p], dst.elements);
    Interval const second = passing(i.comp_op1, start, high[p], dst.elements);
    Index const begin = std::max(first.begin, second.begin);
    Index const end = std::max(begin, std::min(first.end, second.end));
    if (in[0] != out) std::copy(in[0] + begin, in[0] + end, out + begin);
    std::fill(out, out + begin, i.on_false_value);
    std::fill(out + end, out + dst.elements, i.on_false_value);
    // Reduced from the float32 values: dst may be narrower.
    accumulate(core.vector_results, i.reduce_cmd, i.reduce_op, p,
               [&] { return reduce(i.reduce_op, out, dst.elements); });
  });
  write_column(core, i.reduce_res, core.vector_results);
}

inline void execute(CoreState& core, Reciprocal const& i) {
  Operand const data = core.operand(i.data), dst = core.operand(i.dst);
  transform_rows<1>(core, dst, {data}, [&](Index, float* out, auto const& in) {
    for (Index j = 0; j < dst.elements; ++j) out[j] = 1.0f / in[0][j];
  });
}

inline void execute(CoreState& core, Exponential const& i) {
  Operand const data = core.operand(i.src), dst = core.operand(i.dst);
  Column const maximum = column_of(core, i.max_value);
  transform_rows<1>(core, dst, {data}, [&](Index p, float* out, auto const& in) {
    apply(Operator::subtract, in[0], maximum[p], false, out, dst.elements);
    exp_of(out, out, dst.elements);
    accumulate(core.vector_results, i.reduce_cmd, Operator::add, p, [&] { return sum_of(out, dst.elements); });
  });
  write_column(core, i.reduce_res, core.vector_results);
}

inline void execute(CoreState& core, Memset const& i) {
  float const value = std::visit([](auto number) { return static_cast<float>(number); }, i.value);
  Operand const dst = core.operand(i.dst);
  transform_rows<0>(core, dst, {}, [&](Index, float* out, auto const&) { std::fill(out, out + dst.elements, value); });
}

inline void execute(CoreState& core, StreamShuffle const& i) {
  constexpr Index quadrant = 32;
  constexpr int untouched = 255;
  Operand const src = core.operand(i.src), dst = core.operand(i.dst);
  float const* const rows = gather_all(src, core.scratch[0]);
  for (Index p = 0; p < dst.rows; ++p)
    if (int const from = i.shuffle_mask[static_cast<std::size_t>(p % quadrant)]; from != untouched)
      scatter(dst, p, rows + (p / quadrant * quadrant + from) * src.elements);
}

// GpSimdE.

/// Calls visit(element, value) for value = first + sum of step * index, in row-major order of the pattern.
template <class Visit>
void for_each_value(std::vector<Axis> const& pattern, Index first, Visit&& visit) {
  Index element = 0;
  Runs::in_order(pattern).visit(first, [&](Index begin, Index count, Index step) {
    for (Index j = 0; j < count; ++j) visit(element++, begin + j * step);
    return true;
  });
}

inline void execute(CoreState& core, Iota const& i) {
  Operand const dst = core.operand(i.dst);
  Index const first = core.walk.at(i.offset);
  transform_rows<0>(core, dst, {}, [&](Index p, float* out, auto const&) {
    for_each_value(i.pattern, first + p * i.channel_multiplier,
                   [&](Index element, Index value) { out[element] = static_cast<float>(value); });
  });
}

inline void execute(CoreState& core, AffineSelect const& i) {
  Operand const data = core.operand(i.on_true_tile), dst = core.operand(i.dst);
  Index const first = core.walk.at(i.offset);
  transform_rows<1>(core, dst, {data}, [&](Index p, float* out, auto const& in) {
    for_each_value(i.pattern, first + p * i.channel_multiplier, [&](Index element, Index value) {
      bool const kept = apply(i.cmp_op, static_cast<float>(value), 0.0f) != 0.0f;
      out[element] = kept ? in[0][element] : i.on_false_value;
    });
  });
}

// TensorE. Transpose is also of VectorE, for small operands.

/// The operand as a matrix of rows x elements, gathered in scratch memory if its rows are not contiguous.
inline ConstMatrix matrix_of(Operand const& operand, Scratch& scratch) {
  if (operand.contiguous) return {operand.base, operand.rows, operand.elements, operand.row_stride};
  return {gather_all(operand, scratch), operand.rows, operand.elements, operand.elements};
}

inline void execute(CoreState& core, MatMul const& i) {
  Operand const stationary = core.operand(i.stationary), moving = core.operand(i.moving), dst = core.operand(i.dst);
  ConstMatrix const a = matrix_of(stationary, core.scratch[0]), b = matrix_of(moving, core.scratch[1]);
  // TensorE reads SBUF and writes PSUM, so dst overlaps no factor.
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
  ConstMatrix from = matrix_of(data, core.scratch[0]);
  if (dst.may_overlap(data) && data.contiguous)
    from = {gather_all(data, core.scratch[0]), data.rows, data.elements, data.elements};
  float* const to = dst.contiguous ? dst.base : core.scratch[1].of(dst.size());
  Index const to_stride = dst.contiguous ? dst.row_stride : dst.elements;
  swap_axes({from.base, from.stride, 1}, {to, 1, to_stride}, data.rows, data.elements);
  if (!dst.contiguous) scatter_all(dst, to);
}

// DMA.

inline void execute(CoreState& core, DmaCopy const& i) {
  Operand const src = core.dma_operand(i.src, "src", Use::read), dst = core.dma_operand(i.dst, "dst", Use::write);
  if (src.rows == dst.rows) return copy_rows(core, dst, src);
  float* const all = gather_all(src, core.scratch[0]);
  if (src.type != dst.type) round_to(dst.type, all, dst.size());
  scatter_all(dst, all);
}

/// Swaps the first and the last axis; the others keep their places.
inline void execute(CoreState& core, DmaTranspose const& i) {
  Operand const src = core.operand(i.src), dst = core.operand(i.dst);
  std::vector<Axis> from{{src.row_stride, src.rows}}, to{{dst.row_stride, dst.rows}};
  from.insert(from.end(), src.free.begin(), src.free.end());
  to.insert(to.end(), dst.free.begin(), dst.free.end());
  std::swap(to.front(), to.back());
  float const* base = src.base;
  if (dst.may_overlap(src)) {
    base = gather_all(src, core.scratch[0]);
    Index stride = 1;
    for (std::size_t axis = from.size(); axis-- > 0; stride *= from[axis].count) from[axis].stride = stride;
  }
  auto const middle = [](std::vector<Axis> const& axes, std::size_t axis) {
    return axis + 1 < axes.size() ? axes[axis] : Axis{0, 1};
  };
  Axis const j_from = middle(from, 1), k_from = middle(from, 2), j_to = middle(to, 1), k_to = middle(to, 2);
  for (Index j = 0; j < j_from.count; ++j)
    for (Index k = 0; k < k_from.count; ++k)
      swap_axes({base + j * j_from.stride + k * k_from.stride, from.front().stride, from.back().stride},
                {dst.base + j * j_to.stride + k * k_to.stride, to.front().stride, to.back().stride}, from.front().count,
                from.back().count);
}

}  // namespace annulus::nki::simulator
