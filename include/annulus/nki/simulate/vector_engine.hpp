#pragma once
// Simulated VectorE: elementwise operations, reductions and selections, in float32.

#include <array>
#include <vector>

#include "annulus/nki/simulate/row_math.hpp"
#include "annulus/nki/simulate/rows.hpp"

namespace annulus::nki::simulator {

namespace vector_engine_detail {

inline float& at(Column& column, Index p) { return column[static_cast<std::size_t>(p)]; }

/// Accumulates `value` into the accumulator register of row p. A command of idle leaves it undefined (poison).
inline void reduce_into(Column& results, ReduceCommand command, Operator op, Index p, float value) {
  switch (command) {
    case ReduceCommand::idle:
      at(results, p) = poison;
      return;
    case ReduceCommand::reset:
      at(results, p) = identity_of(op);
      return;
    case ReduceCommand::reset_reduce:
      at(results, p) = apply(op, identity_of(op), value);
      return;
    case ReduceCommand::reduce:
      check<Error>(!is_poison(at(results, p)), "reduce_cmd reduce adds to a register that no reset initialised");
      at(results, p) = apply(op, at(results, p), value);
      return;
  }
}

/// The elements [begin, end) of a row that pass `index op bound`; an interval because the operators are monotonic.
struct Interval {
  Index begin, end;
};
inline Interval passing(Operator op, Index start, float bound, Index n) {
  auto const first_failing = [&](auto&& holds) {
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
  auto const below = [&](float index) { return index < bound; };
  auto const up_to = [&](float index) { return index <= bound; };
  switch (op) {
    case Operator::less:
      return {0, first_failing(below)};
    case Operator::less_equal:
      return {0, first_failing(up_to)};
    case Operator::greater:
      return {first_failing([&](float index) { return !(index > bound); }), n};
    case Operator::greater_equal:
      return {first_failing([&](float index) { return !(index >= bound); }), n};
    case Operator::equal:
      return {first_failing(below), first_failing(up_to)};
    default:
      throw Error(message_of("range_select does not compare by ", name_of(op)));
  }
}

}  // namespace vector_engine_detail

inline void execute(CoreState& core, TensorTensor const& i) {
  Operand const data1 = core.read(i.data1, "data1"), data2 = core.read(i.data2, "data2");
  Operand const dst = core.write(i.dst, "dst");
  transform_rows<2>(core, dst, {{{data1, "data1"}, {data2, "data2"}}},
                    [&](Index, float* out, auto const& in) { apply(i.op, in[0], in[1], out, dst.elements); });
}

/// Same results on VectorE, ScalarE and GpSimdE.
inline void execute(CoreState& core, TensorScalar const& i) {
  Operand const data = core.read(i.data, "data");
  Column a = column_of(core, i.operand0, data.rows, "operand0"), b{};
  if (i.op1) b = column_of(core, i.operand1, data.rows, "operand1");
  Operand const dst = core.write(i.dst, "dst");
  transform_rows<1>(core, dst, {{{data, "data"}}}, [&](Index p, float* out, auto const& in) {
    apply(i.op0, in[0], vector_engine_detail::at(a, p), i.reverse0, out, dst.elements);
    if (i.op1) apply(*i.op1, out, vector_engine_detail::at(b, p), i.reverse1, out, dst.elements);
  });
}

inline void execute(CoreState& core, ScalarTensorTensor const& i) {
  Operand const data = core.read(i.data, "data"), tensor = core.read(i.operand1, "operand1");
  Column a = column_of(core, i.operand0, data.rows, "operand0");
  Operand const dst = core.write(i.dst, "dst");
  float* const first = core.scratch[3].of(dst.elements);
  transform_rows<2>(core, dst, {{{data, "data"}, {tensor, "operand1"}}}, [&](Index p, float* out, auto const& in) {
    // The first result is not stored in out, which may be operand1.
    apply(i.op0, in[0], vector_engine_detail::at(a, p), i.reverse0, first, dst.elements);
    if (i.reverse1)
      apply(i.op1, in[1], first, out, dst.elements);
    else
      apply(i.op1, first, in[1], out, dst.elements);
  });
}

inline void execute(CoreState& core, TensorScalarReduce const& i) {
  Operand const data = core.read(i.data, "data");
  Column a = column_of(core, i.operand0, data.rows, "operand0");
  Operand const dst = core.write(i.dst, "dst");
  transform_rows<1>(core, dst, {{{data, "data"}}}, [&](Index p, float* out, auto const& in) {
    apply(i.op0, in[0], vector_engine_detail::at(a, p), false, out, dst.elements);
    vector_engine_detail::reduce_into(core.vector_results, ReduceCommand::reset_reduce, i.reduce_op, p,
                                      reduce(i.reduce_op, out, dst.elements));
  });
  write_column(core, i.reduce_res, core.vector_results, dst.rows, "reduce_res");
}

inline void execute(CoreState& core, TensorReduce const& i) {
  Operand const data = core.read(i.data, "data");
  check<Error>(!data.free.empty() && i.axis == static_cast<int>(data.free.size()), "axis ", i.axis,
               " is not the last axis of data, ", data.free.size());
  Index const length = data.free.back().count, count = data.elements / length;
  Operand const dst = core.write(i.dst, "dst");
  check<Error>(dst.rows == data.rows && dst.elements == count, "dst has ", dst.rows, " x ", dst.elements,
               " elements, expected ", data.rows, " x ", count);
  // All results are computed before the first is written, because dst may be a part of data.
  std::vector<float> results(static_cast<std::size_t>(dst.size()));
  RowSource const source(data, core.scratch[0]);
  float* result = results.data();
  for (Index p = 0; p < data.rows; ++p) {
    float const* const row = source.row(p);
    for (Index j = 0; j < count; ++j) *result++ = (i.negate ? -1.0f : 1.0f) * reduce(i.op, row + j * length, length);
  }
  round_to(dst.type, results.data(), dst.size());
  for (Index p = 0; p < dst.rows; ++p) scatter(dst, p, results.data() + p * count);
}

/// Same results on VectorE, ScalarE and GpSimdE.
inline void execute(CoreState& core, TensorCopy const& i) {
  Operand const src = core.read(i.src, "src");
  Operand const dst = core.write(i.dst, "dst");
  transform_rows<1>(
      core, dst, {{{src, "src"}}},
      [&](Index, float* out, auto const& in) {
        if (in[0] != out) std::copy(in[0], in[0] + dst.elements, out);
      },
      src.type == dst.type);
}

inline void execute(CoreState& core, RangeSelect const& i) {
  using namespace vector_engine_detail;
  Operand const data = core.read(i.on_true_tile, "on_true_tile");
  Column const low = column_of(core, i.bound0, data.rows, "bound0"),
               high = column_of(core, i.bound1, data.rows, "bound1");
  Operand const dst = core.write(i.dst, "dst");
  Index const start = core.walk.at(i.range_start);
  bool const reduces = i.reduce_cmd == ReduceCommand::reduce || i.reduce_cmd == ReduceCommand::reset_reduce;
  transform_rows<1>(core, dst, {{{data, "on_true_tile"}}}, [&](Index p, float* out, auto const& in) {
    auto const row = static_cast<std::size_t>(p);
    Interval const first = passing(i.comp_op0, start, low[row], dst.elements);
    Interval const second = passing(i.comp_op1, start, high[row], dst.elements);
    Index const begin = std::max(first.begin, second.begin);
    Index const end = std::max(begin, std::min(first.end, second.end));
    if (in[0] != out) std::copy(in[0] + begin, in[0] + end, out + begin);
    std::fill(out, out + begin, i.on_false_value);
    std::fill(out + end, out + dst.elements, i.on_false_value);
    // Reduced from the float32 values: dst may be narrower.
    float const largest = reduces ? reduce(i.reduce_op, out, dst.elements) : 0.0f;
    reduce_into(core.vector_results, i.reduce_cmd, i.reduce_op, p, largest);
  });
  if (i.reduce_res) write_column(core, *i.reduce_res, core.vector_results, dst.rows, "reduce_res");
}

inline void execute(CoreState& core, Reciprocal const& i) {
  Operand const data = core.read(i.data, "data");
  Operand const dst = core.write(i.dst, "dst");
  transform_rows<1>(core, dst, {{{data, "data"}}}, [&](Index, float* out, auto const& in) {
    for (Index j = 0; j < dst.elements; ++j) out[j] = 1.0f / in[0][j];
  });
}

inline void execute(CoreState& core, Exponential const& i) {
  check<UnsupportedError>(core.hardware.limits.has_exponential, name_of(core.hardware.target), " has no exponential");
  Operand const src = core.read(i.src, "src");
  Column maximum = column_of(core, i.max_value, src.rows, "max_value");
  Operand const dst = core.write(i.dst, "dst");
  transform_rows<1>(core, dst, {{{src, "src"}}}, [&](Index p, float* out, auto const& in) {
    apply(Operator::subtract, in[0], vector_engine_detail::at(maximum, p), false, out, dst.elements);
    exp_of(out, out, dst.elements);
    vector_engine_detail::reduce_into(core.vector_results, i.reduce_cmd, Operator::add, p, sum_of(out, dst.elements));
  });
  if (i.reduce_res) write_column(core, *i.reduce_res, core.vector_results, dst.rows, "reduce_res");
}

/// Same results on VectorE and GpSimdE.
inline void execute(CoreState& core, Memset const& i) {
  float const value = std::visit([](auto number) { return static_cast<float>(number); }, i.value);
  Operand const dst = core.write(i.dst, "dst");
  transform_rows<0>(core, dst, {}, [&](Index, float* out, auto const&) { std::fill(out, out + dst.elements, value); });
}

inline void execute(CoreState& core, StreamShuffle const& i) {
  constexpr Index quadrant = 32;
  constexpr int untouched = 255;
  check<Error>(static_cast<Index>(i.shuffle_mask.size()) == quadrant, "shuffle_mask has ", i.shuffle_mask.size(),
               " entries, expected ", quadrant);
  bool const whole = std::ranges::find(i.shuffle_mask, untouched) == i.shuffle_mask.end();
  Operand const src = core.read(i.src, "src");
  Operand const dst = core.write(i.dst, "dst", whole);
  check<Error>(src.elements == dst.elements && src.type == dst.type, "src has ", src.elements, " elements of ",
               name_of(src.type), " per partition, dst ", dst.elements, " of ", name_of(dst.type));
  float* const rows = core.scratch[0].of(src.size());
  for (Index p = 0; p < src.rows; ++p) gather(src, p, rows + p * src.elements);
  for (Index p = 0; p < dst.rows; ++p) {
    int const mask = i.shuffle_mask[static_cast<std::size_t>(p % quadrant)];
    if (mask == untouched) continue;
    Index const from = p / quadrant * quadrant + mask;
    check<Error>(mask >= 0 && mask < quadrant && from < src.rows, "partition ", p, " of dst takes partition ", from,
                 " of src, which has ", src.rows);
    scatter(dst, p, rows + from * src.elements);
  }
}

}  // namespace annulus::nki::simulator
