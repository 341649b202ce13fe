#pragma once
// Simulated ScalarE: functions of data * scale + bias, and their sums per partition.

#include "annulus/nki/simulate/row_math.hpp"
#include "annulus/nki/simulate/rows.hpp"

namespace annulus::nki::simulator {

inline void execute(CoreState& core, Activation const& i) {
  Operand const data = core.read(i.data, "data");
  Column const scale = column_of(core, i.scale, data.rows, "scale"), bias = column_of(core, i.bias, data.rows, "bias");
  Operand const dst = core.write(i.dst, "dst");
  check<Error>(!i.reduce_op || *i.reduce_op == Operator::add, "reduce_op is ",
               name_of(i.reduce_op.value_or(Operator::add)), "; activation only adds");
  bool const resets = i.reduce_cmd == ReduceCommand::reset || i.reduce_cmd == ReduceCommand::reset_reduce;
  bool const sums = i.reduce_cmd == ReduceCommand::reduce || i.reduce_cmd == ReduceCommand::reset_reduce;
  transform_rows<1>(core, dst, {{{data, "data"}}}, [&](Index p, float* out, auto const& in) {
    auto const row = static_cast<std::size_t>(p);
    float const* argument = in[0];
    if (scale[row] != 1.0f || bias[row] != 0.0f) {
      Eigen::Map<Eigen::ArrayXf>(out, dst.elements) = RowView(in[0], dst.elements) * scale[row] + bias[row];
      argument = out;
    }
    evaluate(i.op, argument, out, dst.elements);
    if (resets) core.scalar_sums[row] = 0.0f;
    if (!sums) return;
    check<Error>(!is_poison(core.scalar_sums[row]), "reduce_cmd reduce adds to a register that no reset initialised");
    core.scalar_sums[row] += sum_of(out, dst.elements);  // sum of float32 values: dst may be narrower
  });
  if (i.reduce_res) write_column(core, *i.reduce_res, core.scalar_sums, dst.rows, "reduce_res");
}

}  // namespace annulus::nki::simulator
