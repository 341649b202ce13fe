#pragma once
// Rules of elementwise instructions on ScalarE, VectorE or GpSimdE.

#include "annulus/nki/validate/shape_rules.hpp"

namespace annulus::nki::validate_detail {

inline void check(Activation const& i, Site const& site) {
  check_reach(i, Engine::scalar, site);
  Index const partitions = i.dst.partitions();
  require_same_shape("data", i.data, "dst", i.dst, site);
  require_scalar("bias", i.bias, partitions, ColumnType::any, site);
  require_scalar("scale", i.scale, partitions, ColumnType::float32, site);
  require_column("reduce_res", i.reduce_res, partitions, site);
  bool const sums = i.reduce_cmd == ReduceCommand::reduce || i.reduce_cmd == ReduceCommand::reset_reduce;
  if (i.reduce_op)
    require_operator("reduce_op", *i.reduce_op, {Operator::add}, site);
  else
    site.require(!sums && !i.reduce_res, "operator", "reduce_op", "is missing, but ",
                 i.reduce_res ? "reduce_res" : "reduce_cmd", " is given; accepted: add");
}

inline void check(TensorTensor const& i, Site const& site) {
  if (!require_engine(i.engine, {Engine::vector, Engine::gpsimd}, site)) return;
  check_reach(i, i.engine, site);
  require_same_shape("data1", i.data1, "dst", i.dst, site);
  require_same_shape("data2", i.data2, "dst", i.dst, site);
  if (i.engine == Engine::vector) require_not_both_psum("data1", i.data1, "data2", i.data2, site);
}

inline void check(TensorScalar const& i, Site const& site) {
  if (!require_engine(i.engine, {Engine::vector, Engine::scalar, Engine::gpsimd}, site)) return;
  check_reach(i, i.engine, site);
  require_same_shape("data", i.data, "dst", i.dst, site);
  require_scalar("operand0", i.operand0, i.dst.partitions(), ColumnType::float32, site);
  require_scalar("operand1", i.operand1, i.dst.partitions(), ColumnType::float32, site);
  site.require(i.op1 || (!std::holds_alternative<Access>(i.operand1) && !i.reverse1), "operator", "operand1",
               "is given, but op1, which uses it, is missing");
  if (i.engine != Engine::scalar) return;
  bool const accepted = i.op1 ? i.op0 == Operator::multiply && *i.op1 == Operator::add
                              : i.op0 == Operator::multiply || i.op0 == Operator::add;
  site.require(accepted, "operator", "op0", name_of(i.op0), i.op1 ? " then " : "", i.op1 ? name_of(*i.op1) : "",
               "; scalar accepts multiply then add, multiply, or add");
}

inline void check(ScalarTensorTensor const& i, Site const& site) {
  check_reach(i, Engine::vector, site);
  require_same_shape("data", i.data, "dst", i.dst, site);
  require_same_shape("operand1", i.operand1, "dst", i.dst, site);
  require_scalar("operand0", i.operand0, i.dst.partitions(), ColumnType::any, site);
  require_not_both_psum("data", i.data, "operand1", i.operand1, site);
}

inline void check(TensorCopy const& i, Site const& site) {
  if (!require_engine(i.engine, {Engine::vector, Engine::scalar, Engine::gpsimd}, site)) return;
  check_reach(i, i.engine, site);
  require_same_shape("src", i.src, "dst", i.dst, site);
}

inline void check(Reciprocal const& i, Site const& site) {
  check_reach(i, Engine::vector, site);
  require_same_shape("data", i.data, "dst", i.dst, site);
}

inline void check(Exponential const& i, Site const& site) {
  site.require(site.limits.has_exponential, "R18", "", name_of(site.program.target),
               " has no such instruction, only trn3 has; use activation with op exp and a bias instead");
  check_reach(i, Engine::vector, site);
  require_same_shape("src", i.src, "dst", i.dst, site);
  require_scalar("max_value", i.max_value, i.dst.partitions(), ColumnType::float32, site);
  require_column("reduce_res", i.reduce_res, i.dst.partitions(), site);
}

inline void check(Memset const& i, Site const& site) {
  if (!require_engine(i.engine, {Engine::vector, Engine::gpsimd}, site)) return;
  check_reach(i, i.engine, site);
  ElementType const type = site.type(i.dst);
  auto const* integer = std::get_if<int>(&i.value);
  bool const fits =
      site.require((integer == nullptr) == is_floating(type), "R11", "value", "is ", integer ? "an integer" : "a float",
                   " and dst ", name_of(type), "; integers fill integer types, floats floating ones");
  if (fits && type == ElementType::uint8)
    site.require(*integer >= 0 && *integer <= 255, "R11", "value", *integer, "; uint8 holds 0 to 255");
}

}  // namespace annulus::nki::validate_detail
