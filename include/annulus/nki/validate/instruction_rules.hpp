#pragma once
// Rules of each instruction: ScalarE, VectorE and GpSimdE; TensorE; DMA; barriers and collectives. Whether a result
// stays in one PSUM bank depends on the values of loop variables and is checked by the shadow pass.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/validate/operand_rules.hpp"

namespace annulus::nki::validate_detail {

/// check(instruction) for each kind of instruction.
class InstructionRules : protected OperandRules {
 protected:
  using OperandRules::OperandRules;

  void check(Activation const& i) {
    Index const partitions = i.dst.partitions();
    check_elementwise(i, "data", i.data);
    require_scalar("bias", i.bias, partitions, ColumnType::any);
    require_scalar("scale", i.scale, partitions, ColumnType::float32);
    if (i.reduce_res) require_column("reduce_res", *i.reduce_res, partitions);
    bool const sums = i.reduce_cmd == ReduceCommand::reduce || i.reduce_cmd == ReduceCommand::reset_reduce;
    if (i.reduce_op)
      require_one_of(Rule::operators, "reduce_op", *i.reduce_op, {Operator::add});
    else
      require(!sums && !i.reduce_res, Rule::operators, "reduce_op", "is missing, but ",
              i.reduce_res ? "reduce_res" : "reduce_cmd", " is given; accepted: add");
  }

  void check(TensorTensor const& i) {
    if (!check_elementwise(i, "data1", i.data1)) return;
    require_same_shape("data2", i.data2, i.dst);
    if (i.engine == Engine::vector) require_not_both_psum("data1", i.data1, "data2", i.data2);
  }

  void check(TensorScalar const& i) {
    if (!check_elementwise(i, "data", i.data)) return;
    require_scalar("operand0", i.operand0, i.dst.partitions(), ColumnType::float32);
    require_scalar("operand1", i.operand1, i.dst.partitions(), ColumnType::float32);
    require(i.op1 || !std::holds_alternative<Access>(i.operand1), Rule::operators, "operand1",
            "is given, but op1, which uses it, is missing");
    if (i.engine != Engine::scalar) return;
    bool const accepted = (i.op0 == Operator::multiply && i.op1.value_or(Operator::add) == Operator::add) ||
                          (i.op0 == Operator::add && !i.op1);
    require(accepted, Rule::operators, "op0", name_of(i.op0), i.op1 ? " then " : "", i.op1 ? name_of(*i.op1) : "",
            "; scalar accepts multiply then add, multiply, or add");
  }

  void check(ScalarTensorTensor const& i) {
    check_elementwise(i, "data", i.data);
    require_same_shape("operand1", i.operand1, i.dst);
    require_scalar("operand0", i.operand0, i.dst.partitions(), ColumnType::any);
    require_not_both_psum("data", i.data, "operand1", i.operand1);
  }

  void check(TensorCopy const& i) { check_elementwise(i, "src", i.src); }
  void check(Reciprocal const& i) { check_elementwise(i, "data", i.data); }
  void check(Memset const& i) { check_reach(i); }

  void check(TensorReduce const& i) {
    check_reach(i);
    require_one_of(Rule::operators, "op", i.op,
                   {Operator::add, Operator::subtract, Operator::multiply, Operator::maximum, Operator::minimum});
    auto const last = static_cast<int>(i.data.axes().size()) - 1;
    if (!require(i.axis >= 1 && i.axis == last, Rule::shape, "axis", i.axis, "; accepted: the last axis of data, ",
                 last))
      return;
    require_extents(Rule::shape, "dst", i.dst, {i.data.partitions(), i.data.elements() / i.data.axes().back().count},
                    "data without its last axis is ");
  }

  void check(RangeSelect const& i) {
    check_elementwise(i, "on_true_tile", i.on_true_tile);
    for_each_access(i, [&](std::string_view keyword, Use, Access const& access) {
      bool const is_column = keyword != "dst" && keyword != "on_true_tile";
      if (is_column && require_column(keyword, access, i.dst.partitions()))
        require_type(type(access) == ElementType::float32, Rule::range_select, keyword, access, "accepted: float32");
    });
    ValueRange const start = scope_.range_of(i.range_start);
    Index const last = detail::saturating_sum(start.high, i.dst.elements() - 1);
    require(start.low > -limits_.exact_index && last < limits_.exact_index, Rule::range_select, "range_start",
            "counts elements ", start.low, "..", last, " in float32; exact below ", limits_.exact_index);
  }

  /// The pattern's values are offset + p * channel_multiplier + sum of step * i, computed in int32.
  void check(Iota const& i) {
    check_reach(i);
    require_axes("pattern", std::ssize(i.pattern), " axes");
    Index elements = 1;
    ValueRange range = scope_.range_of(i.offset);
    for (Axis const& axis : i.pattern) {
      if (!require(axis.count >= 1, Rule::access_pattern, "pattern", "an axis of ", axis.count,
                   " elements; at least 1 is needed"))
        return;
      elements = detail::saturating_product(elements, axis.count);
      range.extend(detail::saturating_product(axis.stride, axis.count - 1));
    }
    range.extend(detail::saturating_product(i.channel_multiplier, i.dst.partitions() - 1));
    require(elements == i.dst.elements(), Rule::shape, "pattern", "counts ", elements, " elements; dst has ",
            i.dst.elements(), " per partition");
    using Int32 = std::numeric_limits<std::int32_t>;
    require(range.low >= Int32::min() && range.high <= Int32::max(), Rule::access_pattern, "offset", "values ",
            range.low, "..", range.high, "; they are counted in int32");
  }

  void check(StreamShuffle const& i) {
    check_reach(i);
    require_same_type(Rule::shape, i.dst, "src", i.src);
    require(i.src.elements() == i.dst.elements(), Rule::shape, "dst", i.dst.elements(),
            " elements per partition; src has ", i.src.elements(), ", and both must be equal");
    require(i.src.partitions() == 1, Rule::shape, "src", i.src.partitions(), " partitions; accepted: 1");
    require(i.dst.partitions() <= 32, Rule::shape, "dst", i.dst.partitions(), " partitions; at most 32, a quadrant");
  }

  void check(MatMul const& i) {
    require_tensor_engine_memory(Rule::matmul, "dst", i.dst, Memory::psum);
    require_tensor_engine_memory(Rule::matmul, "stationary", i.stationary, Memory::sbuf);
    require_tensor_engine_memory(Rule::matmul, "moving", i.moving, Memory::sbuf);
    require(i.stationary.partitions() == i.moving.partitions(), Rule::matmul, "moving", "contracts ",
            i.moving.partitions(), " partitions; stationary has ", i.stationary.partitions(),
            ", and both must be equal");
    require_at_most(limits_.stationary_columns, i.stationary.elements(), Rule::matmul, "stationary", " columns");
    bool const narrow = type(i.dst) == ElementType::bfloat16 && limits_.has_bfloat16_psum;
    require_at_most(limits_.moving_columns * (narrow ? 2 : 1), i.moving.elements(), Rule::matmul, "moving", " columns");
    require_extents(Rule::matmul, "dst", i.dst, {i.stationary.elements(), i.moving.elements()}, "the product is ");
    require_type(type(i.dst) == ElementType::float32 || narrow, Rule::matmul, "dst", i.dst, "accepted: float32",
                 limits_.has_bfloat16_psum ? ", bfloat16" : "");
    ElementType const left = type(i.stationary), right = type(i.moving);
    require((left == ElementType::float32) == (right == ElementType::float32), Rule::matmul_types, "moving", "is ",
            name_of(right), " and stationary ", name_of(left), "; float32 goes with float32 only");
  }

  void check(Transpose const& i) {
    require_tensor_engine_memory(Rule::nc_transpose, "dst", i.dst, Memory::psum);
    require_tensor_engine_memory(Rule::nc_transpose, "data", i.data, Memory::sbuf);
    Index const most = limits_.transpose_extent;
    require(i.data.partitions() <= most && i.data.elements() <= most, Rule::nc_transpose, "data", "is ",
            extents_of(i.data), "; TensorE transposes at most ", most, " x ", most);
    require_extents(Rule::nc_transpose, "dst", i.dst, {i.data.elements(), i.data.partitions()}, "the transpose is ");
    require_same_type(Rule::nc_transpose, i.dst, "data", i.data);
  }

  void check(DmaCopy const& i) {
    require_reach(Engine::dma, "dst", i.dst);
    require_reach(Engine::dma, "src", i.src);
    require(i.src.size() == i.dst.size(), Rule::shape, "src", i.src.size(), " elements; dst has ", i.dst.size(),
            ", and both must be equal");
  }

  /// The DMA engines' caches make a transpose reliable for 2-byte types, axes in multiples of 16 elements, and
  /// destinations that begin at multiples of 32 bytes.
  void check(DmaTranspose const& i) {
    require_reach(Engine::dma, "src", i.src);
    require_memory(memory(i.dst) == Memory::sbuf, Rule::reach, "dst", i.dst, "accepted: sbuf");
    require_same_type(Rule::dma_transpose, i.dst, "src", i.src);
    require_type(bytes_of(type(i.src)) == 2, Rule::dma_transpose, "src", i.src, "accepted: types of 2 bytes");
    auto const counts_of = [](Access const& access) {
      std::vector<Index> counts;
      for (Axis const& axis : access.axes()) counts.push_back(axis.count);
      return counts;
    };
    std::vector<Index> const source = counts_of(i.src), destination = counts_of(i.dst);
    if (!require(source.size() >= 2 && source.size() <= 4, Rule::dma_transpose, "src", source.size(),
                 " axes; accepted: 2 to 4"))
      return;
    std::vector<Index> swapped = source;
    std::swap(swapped.front(), swapped.back());
    require(destination == swapped, Rule::dma_transpose, "dst", "is ", destination, "; src is ", source,
            ", and dst must be src with its first and last axis swapped");
    Index const rows = source.front(), columns = source.back();
    require(rows % 16 == 0, Rule::dma_transpose, "src", "first axis of ", rows, "; accepted: multiples of 16");
    require(columns % 16 == 0 && columns <= 128, Rule::dma_transpose, "src", "last axis of ", columns,
            "; accepted: multiples of 16 up to 128");
    Affine const& begin = i.dst.offset;
    Index const bytes = bytes_of(type(i.dst)), elements = 32 / bytes;
    auto const is_aligned = [&](Index offset) { return offset % elements == 0; };
    require(is_aligned(begin.constant()) && std::ranges::all_of(begin.terms(), is_aligned, &Affine::Term::coefficient),
            Rule::dma_transpose, "dst", "begins at byte ", detail::saturating_product(begin.constant(), bytes),
            begin.is_constant() ? "" : " and on", " of a partition; accepted: multiples of 32");
  }

  void check(CoreBarrier const& i) {
    require(program_.cores == 2, Rule::synchronization, "", "in a program for ", program_.cores,
            " core; barriers are for 2 cores");
    require_all_cores();
    require_whole_tensor("data", i.data);
  }

  void check(CollectivePermute const& i) { check_permute(i, i.dst); }
  void check(CollectivePermuteReduce const& i) {
    check_permute(i, i.dst);
    require_one_of(Rule::operators, "op", i.op, {Operator::add, Operator::minimum, Operator::maximum});
  }

  void check(ProcessingRank const& i) {
    ValueRange const hops = scope_.range_of(i.iteration_id);
    require(hops.low >= 0 && hops.high < program_.ranks, Rule::synchronization, "iteration_id", hops.low, "..",
            hops.high, "; accepted: 0 to ", program_.ranks - 1);
  }

  void check(RegisterLoad const& i) {
    require_memory(memory(i.src) == Memory::sbuf, Rule::reach, "src", i.src, "accepted: sbuf");
    require_type(type(i.src) == ElementType::int32, Rule::columns, "src", i.src, "accepted: int32");
    require_column("src", i.src, 1);
  }

 private:
  void require_tensor_engine_memory(Rule rule, std::string_view keyword, Access const& access, Memory accepted) {
    require_memory(memory(access) == accepted, rule, keyword, access, "TensorE ",
                   accepted == Memory::psum ? "writes psum" : "reads sbuf", " only");
  }

  /// Requires all elements of a tensor in shared HBM, in order.
  void require_whole_tensor(std::string_view keyword, Access const& access) {
    Buffer const& buffer = program_.buffer(access);
    if (require_memory(buffer.memory == Memory::shared_hbm, Rule::synchronization, keyword, access,
                       "accepted: shared_hbm"))
      require(access.contiguous_from(0) && access.size() == buffer.size() && access.offset == Affine{} &&
                  !access.register_offset,
              Rule::synchronization, keyword, "a part of tensor ", buffer.name, "; accepted: all of its ",
              buffer.size(), " elements");
  }

  /// Requires an instruction that every core of the pair issues.
  void require_all_cores() {
    require(scope_.core() < 0, Rule::synchronization, "", "is issued by one core only; all ", program_.cores,
            " cores must issue the same sequence");
  }

  template <class I>
  void check_permute(I const& i, Access const& dst) {
    require(program_.ranks >= 2, Rule::synchronization, "", "in a program for ", program_.ranks,
            " rank; a ring has at least 2");
    require_all_cores();
    Buffer const& to = program_.buffer(dst);
    for_each_access(i, [&](std::string_view keyword, Use use, Access const& access) {
      require_whole_tensor(keyword, access);
      if (use == Use::write) return;
      Buffer const& from = program_.buffer(access);
      require(access.buffer != dst.buffer, Rule::synchronization, keyword, "is tensor ", from.name,
              ", and so is dsts_by_channel; they must be distinct");
      require(from.shape == to.shape && from.type == to.type, Rule::synchronization, keyword, from.name, " is ",
              from.shape, " of ", name_of(from.type), "; dsts_by_channel ", to.name, " is ", to.shape, " of ",
              name_of(to.type), ", and both must be equal");
    });
  }
};

}  // namespace annulus::nki::validate_detail
