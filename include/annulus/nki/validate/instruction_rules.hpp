#pragma once
// Rules of each instruction: ScalarE, VectorE and GpSimdE; TensorE; DMA; barriers and collectives. Whether a result
// stays in one PSUM bank depends on the values of loop variables and is checked by the shadow pass.

#include <cstdint>

#include "annulus/nki/validate/operand_rules.hpp"

namespace annulus::nki::validate_detail {

inline void check(Activation const& i, Site const& site) {
  Index const partitions = i.dst.partitions();
  check_elementwise(i, "data", i.data, site);
  require_scalar("bias", i.bias, partitions, ColumnType::any, site);
  require_scalar("scale", i.scale, partitions, ColumnType::float32, site);
  if (i.reduce_res) require_column("reduce_res", *i.reduce_res, partitions, site);
  bool const sums = i.reduce_cmd == ReduceCommand::reduce || i.reduce_cmd == ReduceCommand::reset_reduce;
  if (i.reduce_op)
    require_one_of(Rule::operators, "reduce_op", *i.reduce_op, {Operator::add}, site);
  else
    site.require(!sums && !i.reduce_res, Rule::operators, "reduce_op", "is missing, but ",
                 i.reduce_res ? "reduce_res" : "reduce_cmd", " is given; accepted: add");
}

inline void check(TensorTensor const& i, Site const& site) {
  if (!check_elementwise(i, "data1", i.data1, site)) return;
  require_same_shape("data2", i.data2, i.dst, site);
  if (i.engine == Engine::vector) require_not_both_psum("data1", i.data1, "data2", i.data2, site);
}

inline void check(TensorScalar const& i, Site const& site) {
  if (!check_elementwise(i, "data", i.data, site)) return;
  require_scalar("operand0", i.operand0, i.dst.partitions(), ColumnType::float32, site);
  require_scalar("operand1", i.operand1, i.dst.partitions(), ColumnType::float32, site);
  site.require(i.op1 || !std::holds_alternative<Access>(i.operand1), Rule::operators, "operand1",
               "is given, but op1, which uses it, is missing");
  if (i.engine != Engine::scalar) return;
  bool const accepted = i.op1 ? i.op0 == Operator::multiply && *i.op1 == Operator::add
                              : i.op0 == Operator::multiply || i.op0 == Operator::add;
  site.require(accepted, Rule::operators, "op0", name_of(i.op0), i.op1 ? " then " : "", i.op1 ? name_of(*i.op1) : "",
               "; scalar accepts multiply then add, multiply, or add");
}

inline void check(ScalarTensorTensor const& i, Site const& site) {
  check_elementwise(i, "data", i.data, site);
  require_same_shape("operand1", i.operand1, i.dst, site);
  require_scalar("operand0", i.operand0, i.dst.partitions(), ColumnType::any, site);
  require_not_both_psum("data", i.data, "operand1", i.operand1, site);
}

inline void check(TensorCopy const& i, Site const& site) { check_elementwise(i, "src", i.src, site); }

inline void check(Reciprocal const& i, Site const& site) { check_elementwise(i, "data", i.data, site); }

inline void check(Memset const& i, Site const& site) { check_reach(i, site); }

inline void check(TensorReduce const& i, Site const& site) {
  check_reach(i, site);
  require_one_of(Rule::operators, "op", i.op,
                 {Operator::add, Operator::subtract, Operator::multiply, Operator::maximum, Operator::minimum}, site);
  auto const last = static_cast<int>(i.data.axes().size()) - 1;
  if (!site.require(i.axis >= 1 && i.axis == last, Rule::shape, "axis", i.axis, "; accepted: the last axis of data, ",
                    last))
    return;
  Extents const left{i.data.partitions(), i.data.elements() / i.data.axis(static_cast<std::size_t>(last)).count};
  site.require(extents_of(i.dst) == left, Rule::shape, "dst", "is ", extents_of(i.dst),
               "; data without its last axis is ", left);
}

inline void check(RangeSelect const& i, Site const& site) {
  check_elementwise(i, "on_true_tile", i.on_true_tile, site);
  auto const check_float32_column = [&](std::string_view keyword, Access const& access) {
    if (require_column(keyword, access, i.dst.partitions(), site))
      require_type(site.type(access) == ElementType::float32, Rule::range_select, keyword, access, site,
                   "accepted: float32");
  };
  check_float32_column("bound0", i.bound0);
  check_float32_column("bound1", i.bound1);
  if (i.reduce_res) check_float32_column("reduce_res", *i.reduce_res);
  ValueRange const start = site.scope.range_of(i.range_start);
  Index const last = detail::saturating_sum(start.high, i.dst.elements() - 1);
  site.require(start.low > -site.limits.exact_index && last < site.limits.exact_index, Rule::range_select,
               "range_start", "counts elements ", start.low, "..", last, " in float32; exact below ",
               site.limits.exact_index);
}

/// The pattern's values are offset + p * channel_multiplier + sum of step * i, computed in int32.
inline void check(Iota const& i, Site const& site) {
  check_reach(i, site);
  auto const axes = static_cast<Index>(i.pattern.size());
  site.require(axes >= 1 && axes <= site.limits.free_axes, Rule::access_pattern, "pattern", axes, " axes; 1 to ",
               site.limits.free_axes, " are accepted");
  Index elements = 1;
  ValueRange range = site.scope.range_of(i.offset);
  auto const extend_range = [&](Index step, Index count) {
    Index const distance = detail::saturating_product(step, count - 1);
    Index& end = distance < 0 ? range.low : range.high;
    end = detail::saturating_sum(end, distance);
  };
  for (Axis const& axis : i.pattern) {
    if (!site.require(axis.count >= 1, Rule::access_pattern, "pattern", "an axis of ", axis.count,
                      " elements; at least 1 is needed"))
      return;
    elements = detail::saturating_product(elements, axis.count);
    extend_range(axis.stride, axis.count);
  }
  extend_range(i.channel_multiplier, i.dst.partitions());
  site.require(elements == i.dst.elements(), Rule::shape, "pattern", "counts ", elements, " elements; dst has ",
               i.dst.elements(), " per partition");
  using Int32 = std::numeric_limits<std::int32_t>;
  site.require(range.low >= Int32::min() && range.high <= Int32::max(), Rule::access_pattern, "offset", "values ",
               range.low, "..", range.high, "; they are counted in int32");
}

inline void check(StreamShuffle const& i, Site const& site) {
  check_reach(i, site);
  require_same_type(Rule::shape, i.dst, "src", i.src, site);
  site.require(i.src.elements() == i.dst.elements(), Rule::shape, "dst", i.dst.elements(),
               " elements per partition; src has ", i.src.elements(), ", and both must be equal");
  site.require(i.src.partitions() == 1, Rule::shape, "src", i.src.partitions(), " partitions; accepted: 1");
  site.require(i.dst.partitions() <= 32, Rule::shape, "dst", i.dst.partitions(), " partitions; at most 32, a quadrant");
}

inline void require_tensor_engine_memory(Rule rule, std::string_view keyword, Access const& access, Memory memory,
                                         Site const& site) {
  require_memory(site.memory(access) == memory, rule, keyword, access, site, "TensorE ",
                 memory == Memory::psum ? "writes psum" : "reads sbuf", " only");
}

inline void check(MatMul const& i, Site const& site) {
  require_tensor_engine_memory(Rule::matmul, "dst", i.dst, Memory::psum, site);
  require_tensor_engine_memory(Rule::matmul, "stationary", i.stationary, Memory::sbuf, site);
  require_tensor_engine_memory(Rule::matmul, "moving", i.moving, Memory::sbuf, site);
  site.require(i.stationary.partitions() == i.moving.partitions(), Rule::matmul, "moving", "contracts ",
               i.moving.partitions(), " partitions; stationary has ", i.stationary.partitions(),
               ", and both must be equal");
  site.require(i.stationary.elements() <= site.limits.stationary_columns, Rule::matmul, "stationary",
               i.stationary.elements(), " columns; at most ", site.limits.stationary_columns);
  ElementType const type = site.type(i.dst);
  bool const narrow = type == ElementType::bfloat16 && site.limits.has_bfloat16_psum;
  Index const columns = site.limits.moving_columns * (narrow ? 2 : 1);
  site.require(i.moving.elements() <= columns, Rule::matmul, "moving", i.moving.elements(), " columns; at most ",
               columns);
  Extents const product{i.stationary.elements(), i.moving.elements()};
  site.require(extents_of(i.dst) == product, Rule::matmul, "dst", "is ", extents_of(i.dst), "; the product is ",
               product);
  require_type(type == ElementType::float32 || narrow, Rule::matmul, "dst", i.dst, site, "accepted: float32",
               site.limits.has_bfloat16_psum ? ", bfloat16" : "");
  ElementType const left = site.type(i.stationary), right = site.type(i.moving);
  site.require((left == ElementType::float32) == (right == ElementType::float32), Rule::matmul_types, "moving", "is ",
               name_of(right), " and stationary ", name_of(left), "; float32 goes with float32 only");
}

inline void check(Transpose const& i, Site const& site) {
  require_tensor_engine_memory(Rule::nc_transpose, "dst", i.dst, Memory::psum, site);
  require_tensor_engine_memory(Rule::nc_transpose, "data", i.data, Memory::sbuf, site);
  Index const most = site.limits.transpose_extent;
  site.require(i.data.partitions() <= most && i.data.elements() <= most, Rule::nc_transpose, "data", "is ",
               extents_of(i.data), "; TensorE transposes at most ", most, " x ", most);
  Extents const transpose{i.data.elements(), i.data.partitions()};
  site.require(extents_of(i.dst) == transpose, Rule::nc_transpose, "dst", "is ", extents_of(i.dst),
               "; the transpose is ", transpose);
  require_same_type(Rule::nc_transpose, i.dst, "data", i.data, site);
}

inline void check(DmaCopy const& i, Site const& site) {
  require_reach(Engine::dma, "dst", i.dst, site);
  require_reach(Engine::dma, "src", i.src, site);
  site.require(i.src.size() == i.dst.size(), Rule::shape, "src", i.src.size(), " elements; dst has ", i.dst.size(),
               ", and both must be equal");
}

/// The counts of all axes.
inline std::vector<Index> counts_of(Access const& access) {
  std::vector<Index> counts;
  for (Axis const& axis : access.axes()) counts.push_back(axis.count);
  return counts;
}

/// The DMA engines' caches make a transpose reliable for 2-byte types, axes in multiples of 16 elements, and
/// destinations that begin at multiples of 32 bytes.
inline void check(DmaTranspose const& i, Site const& site) {
  require_reach(Engine::dma, "src", i.src, site);
  require_memory(site.memory(i.dst) == Memory::sbuf, Rule::reach, "dst", i.dst, site, "accepted: sbuf");
  require_same_type(Rule::dma_transpose, i.dst, "src", i.src, site);
  require_type(bytes_of(site.type(i.src)) == 2, Rule::dma_transpose, "src", i.src, site, "accepted: types of 2 bytes");
  std::vector<Index> const source = counts_of(i.src);
  std::size_t const num_axes = source.size();
  if (!site.require(num_axes >= 2 && num_axes <= 4, Rule::dma_transpose, "src", num_axes, " axes; accepted: 2 to 4"))
    return;
  std::vector<Index> swapped = source;
  std::swap(swapped.front(), swapped.back());
  site.require(counts_of(i.dst) == swapped, Rule::dma_transpose, "dst", "is ", counts_of(i.dst), "; src is ", source,
               ", and dst must be src with its first and last axis swapped");
  Index const rows = source.front(), columns = source.back();
  site.require(rows % 16 == 0, Rule::dma_transpose, "src", "first axis of ", rows, "; accepted: multiples of 16");
  site.require(columns % 16 == 0 && columns <= 128, Rule::dma_transpose, "src", "last axis of ", columns,
               "; accepted: multiples of 16 up to 128");
  Index const bytes = bytes_of(site.type(i.dst)), elements = 32 / bytes;
  bool aligned = i.dst.offset.constant() % elements == 0;
  for (Affine::Term const& term : i.dst.offset.terms()) aligned = aligned && term.coefficient % elements == 0;
  site.require(aligned, Rule::dma_transpose, "dst", "begins at byte ",
               detail::saturating_product(i.dst.offset.constant(), bytes), i.dst.offset.is_constant() ? "" : " and on",
               " of a partition; accepted: multiples of 32");
}

/// Requires all elements of a tensor in shared HBM, in order.
inline void require_whole_tensor(std::string_view keyword, Access const& access, Site const& site) {
  Buffer const& buffer = site.buffer(access);
  if (require_memory(buffer.memory == Memory::shared_hbm, Rule::synchronization, keyword, access, site,
                     "accepted: shared_hbm"))
    site.require(access.contiguous_from(0) && access.size() == buffer.size() && access.offset == Affine{} &&
                     !access.register_offset,
                 Rule::synchronization, keyword, "a part of tensor ", buffer.name, "; accepted: all of its ",
                 buffer.size(), " elements");
}

/// Requires an instruction that every core of the pair issues.
inline void require_all_cores(Site const& site) {
  site.require(!site.scope.on_one_core(), Rule::synchronization, "", "is issued by one core only; all ",
               site.program.cores, " cores must issue the same sequence");
}

inline void check(CoreBarrier const& i, Site const& site) {
  site.require(site.program.cores == 2, Rule::synchronization, "", "in a program for ", site.program.cores,
               " core; barriers are for 2 cores");
  require_all_cores(site);
  require_whole_tensor("data", i.data, site);
}

inline void require_permute(std::initializer_list<std::pair<std::string_view, Access const*>> sources,
                            Access const& dst, Site const& site) {
  site.require(site.program.ranks >= 2, Rule::synchronization, "", "in a program for ", site.program.ranks,
               " rank; a ring has at least 2");
  require_all_cores(site);
  require_whole_tensor("dsts_by_channel", dst, site);
  Buffer const& to = site.buffer(dst);
  for (auto const& [keyword, source] : sources) {
    require_whole_tensor(keyword, *source, site);
    Buffer const& from = site.buffer(*source);
    site.require(source->buffer != dst.buffer, Rule::synchronization, keyword, "is tensor ", from.name,
                 ", and so is dsts_by_channel; they must be distinct");
    site.require(from.shape == to.shape && from.type == to.type, Rule::synchronization, keyword, from.name, " is ",
                 from.shape, " of ", name_of(from.type), "; dsts_by_channel ", to.name, " is ", to.shape, " of ",
                 name_of(to.type), ", and both must be equal");
  }
}

inline void check(CollectivePermute const& i, Site const& site) {
  require_permute({{"srcs_by_channel", &i.src}}, i.dst, site);
}

inline void check(CollectivePermuteReduce const& i, Site const& site) {
  require_permute({{"srcs0_by_channel", &i.src0}, {"srcs1_by_channel", &i.src1}}, i.dst, site);
  require_one_of(Rule::operators, "op", i.op, {Operator::add, Operator::minimum, Operator::maximum}, site);
}

inline void check(ProcessingRank const& i, Site const& site) {
  require_register("", i.register_number, site);
  ValueRange const hops = site.scope.range_of(i.iteration_id);
  site.require(hops.low >= 0 && hops.high < site.program.ranks, Rule::synchronization, "iteration_id", hops.low, "..",
               hops.high, "; accepted: 0 to ", site.program.ranks - 1);
}

inline void check(RegisterLoad const& i, Site const& site) {
  require_register("", i.register_number, site);
  require_memory(site.memory(i.src) == Memory::sbuf, Rule::reach, "src", i.src, site, "accepted: sbuf");
  require_type(site.type(i.src) == ElementType::int32, Rule::columns, "src", i.src, site, "accepted: int32");
  require_column("src", i.src, 1, site);
}

}  // namespace annulus::nki::validate_detail
