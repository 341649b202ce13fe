#pragma once
// Rules of VectorE instructions that reduce the elements of a partition.

#include "annulus/nki/validate/shape_rules.hpp"

namespace annulus::nki::validate_detail {

inline void check(TensorScalarReduce const& i, Site const& site) {
  check_reach(i, Engine::vector, site);
  require_same_shape("data", i.data, "dst", i.dst, site);
  require_scalar("operand0", i.operand0, i.dst.partitions(), ColumnType::float32, site);
  require_operator("reduce_op", i.reduce_op, {Operator::add, Operator::multiply, Operator::maximum, Operator::minimum},
                   site);
  require_column("reduce_res", i.reduce_res, i.dst.partitions(), site);
}

inline void check(TensorReduce const& i, Site const& site) {
  check_reach(i, Engine::vector, site);
  require_operator("op", i.op,
                   {Operator::add, Operator::subtract, Operator::multiply, Operator::maximum, Operator::minimum,
                    Operator::logical_and, Operator::logical_or},
                   site);
  auto const last = static_cast<int>(i.data.axes().size()) - 1;
  if (!site.require(i.axis >= 1 && i.axis == last, "shape", "axis", i.axis, "; accepted: the last axis of data, ",
                    last))
    return;
  Index const left = i.data.elements() / i.data.axis(static_cast<std::size_t>(last)).count;
  site.require(i.dst.partitions() == i.data.partitions() && i.dst.elements() == left, "shape", "dst", "is ",
               i.dst.partitions(), " x ", i.dst.elements(), "; data without its last axis is ", i.data.partitions(),
               " x ", left);
}

inline void check(RangeSelect const& i, Site const& site) {
  check_reach(i, Engine::vector, site);
  require_same_shape("on_true_tile", i.on_true_tile, "dst", i.dst, site);
  site.require(is_floating(site.type(i.on_true_tile)), "R9", "on_true_tile", "is ", name_of(site.type(i.on_true_tile)),
               "; accepted: floating types");
  auto const comparisons = {Operator::equal, Operator::less, Operator::less_equal, Operator::greater,
                            Operator::greater_equal};
  require_operator("comp_op0", i.comp_op0, comparisons, site, "R9");
  require_operator("comp_op1", i.comp_op1, comparisons, site, "R9");
  auto const check_float32_column = [&](std::string_view keyword, Access const& access) {
    if (require_column(keyword, access, i.dst.partitions(), site))
      site.require(site.type(access) == ElementType::float32, "R9", keyword, "is ", name_of(site.type(access)),
                   "; accepted: float32");
  };
  check_float32_column("bound0", i.bound0);
  check_float32_column("bound1", i.bound1);
  if (i.reduce_res) check_float32_column("reduce_res", *i.reduce_res);
  require_operator("reduce_op", i.reduce_op, {Operator::maximum}, site, "R9");
  site.require(i.on_false_value == lowest_float, "R9", "on_false_value", i.on_false_value,
               "; accepted: ", lowest_float);
  ValueRange const start = site.scope.range_of(i.range_start);
  Index const last = saturating_add(start.high, i.dst.elements() - 1);
  site.require(start.low > -site.limits.exact_index && last < site.limits.exact_index, "R9", "range_start",
               "counts elements ", start.low, "..", last, " in float32; exact below ", site.limits.exact_index);
}

}  // namespace annulus::nki::validate_detail
