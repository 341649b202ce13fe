#pragma once
// Simulated TensorE: matrix products and transposes.

#include "annulus/nki/simulate/matrix_product.hpp"
#include "annulus/nki/simulate/rows.hpp"
#include "annulus/nki/simulate/transposition.hpp"

namespace annulus::nki::simulator {

/// The operand as a matrix of rows x elements, gathered in scratch memory if its rows are not contiguous.
inline ConstMatrix matrix_of(Operand const& operand, Scratch& scratch) {
  if (operand.contiguous) return {operand.base, operand.rows, operand.elements, operand.row_stride};
  float* const gathered = scratch.of(operand.size());
  for (Index p = 0; p < operand.rows; ++p) gather(operand, p, gathered + p * operand.elements);
  return {gathered, operand.rows, operand.elements, operand.elements};
}

inline void execute(CoreState& core, MatMul const& i) {
  Operand const stationary = core.read(i.stationary, "stationary"), moving = core.read(i.moving, "moving");
  if (i.accumulate) core.read(i.dst, "dst");
  Operand const dst = core.write(i.dst, "dst");
  check<Error>(stationary.rows == moving.rows && dst.rows == stationary.elements && dst.elements == moving.elements,
               "dst of ", dst.rows, " x ", dst.elements, " elements is not the product of stationary, ",
               stationary.rows, " x ", stationary.elements, ", and moving, ", moving.rows, " x ", moving.elements);
  ConstMatrix const a = matrix_of(stationary, core.scratch[0]), b = matrix_of(moving, core.scratch[1]);
  bool const disjoint = !dst.may_overlap(stationary) && !dst.may_overlap(moving);
  if (dst.contiguous && dst.type == ElementType::float32 && disjoint) {
    multiply_transposed(a, b, i.accumulate, dst.base, dst.row_stride, core.packed);
    return;
  }
  float* const product = core.scratch[2].of(dst.size());
  multiply_transposed(a, b, false, product, dst.elements, core.packed);
  float* const old = core.scratch[3].of(dst.elements);
  for (Index p = 0; p < dst.rows; ++p) {
    float* const row = product + p * dst.elements;
    if (i.accumulate) {
      gather(dst, p, old);
      for (Index j = 0; j < dst.elements; ++j) row[j] += old[j];
    }
    round_to(dst.type, row, dst.elements);
    scatter(dst, p, row);
  }
}

/// Transpose on TensorE or, for small operands, on VectorE.
inline void execute(CoreState& core, Transpose const& i) {
  Operand const data = core.read(i.data, "data");
  Operand const dst = core.write(i.dst, "dst");
  check<Error>(dst.rows == data.elements && dst.elements == data.rows, "dst of ", dst.rows, " x ", dst.elements,
               " elements is not the transpose of data, ", data.rows, " x ", data.elements);
  check<Error>(dst.type == data.type, "dst is ", name_of(dst.type), ", data ", name_of(data.type),
               "; a transpose keeps the type");
  ConstMatrix from = matrix_of(data, core.scratch[0]);
  if (dst.may_overlap(data) && data.contiguous) {
    float* const copied = core.scratch[0].of(data.size());
    for (Index p = 0; p < data.rows; ++p) gather(data, p, copied + p * data.elements);
    from = {copied, data.rows, data.elements, data.elements};
  }
  float* const to = dst.contiguous ? dst.base : core.scratch[1].of(dst.size());
  Index const to_stride = dst.contiguous ? dst.row_stride : dst.elements;
  swap_axes({from.base, from.stride, 1}, {to, 1, to_stride}, data.rows, data.elements);
  if (!dst.contiguous)
    for (Index p = 0; p < dst.rows; ++p) scatter(dst, p, to + p * dst.elements);
}

}  // namespace annulus::nki::simulator
