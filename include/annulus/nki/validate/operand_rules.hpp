#pragma once
// Rules that hold for every operand of every instruction: indices, memory, partitions, access pattern, bounds.

#include <algorithm>
#include <array>
#include <concepts>
#include <variant>

#include "annulus/nki/validate/site.hpp"

namespace annulus::nki::validate_detail {

/// Checks that buffers and registers exist and that index expressions use variables in scope only; later rules rely on
/// it.
struct IndexRules {
  Site const& site;
  bool hold = true;

  void operator()(std::string_view keyword, Use, Access const& access) { (*this)(keyword, access); }
  void operator()(std::string_view keyword, Use, std::optional<Access> const& access) {
    if (access) (*this)(keyword, *access);
  }
  void operator()(std::string_view keyword, Scalar const& scalar) {
    if (auto const* access = std::get_if<Access>(&scalar)) (*this)(keyword, *access);
  }
  void operator()(std::string_view keyword, Affine const& index) {
    for (Affine::Term const& term : index.terms())
      need(site.scope.knows(term.variable), keyword, "an index depends on variable ", term.variable,
           ", which no loop around it counts; accepted: 0 (the core) and the variables of those loops");
  }
  template <class Value>
  requires(!std::same_as<Value, Affine> && !std::same_as<Value, Scalar>) void operator()(std::string_view,
                                                                                         Value const&) {}

 private:
  void operator()(std::string_view keyword, Access const& access) {
    auto const count = static_cast<int>(site.program.buffers.size());
    need(access.buffer >= 0 && access.buffer < count, keyword, "buffer ", access.buffer, "; the program has ", count,
         " buffers");
    (*this)(keyword, access.offset);
    need(!access.axes().empty(), keyword, "no axes; at least the partition axis is needed");
    for (Axis const& axis : access.axes())
      need(axis.count >= 1, keyword, "an axis of ", axis.count, " elements; at least 1 is needed");
    if (!access.register_offset) return;
    int const number = access.register_offset->register_number;
    need(number >= 0 && number < site.program.registers, keyword, "register ", number, "; the program has ",
         site.program.registers, " registers");
  }
  template <class... Parts>
  void need(bool holds, std::string_view keyword, Parts const&... parts) {
    hold = site.require(holds, "form", keyword, parts...) && hold;
  }
};

inline Index start_partition_step(Index partitions) { return partitions > 64 ? 128 : partitions > 32 ? 64 : 32; }

inline bool require_start_partition(Index start, Index partitions, std::string_view keyword, Site const& site) {
  Index const step = start_partition_step(partitions);
  return site.require(start >= 0 && start % step == 0, "R1", keyword, partitions, " partitions from partition ", start,
                      "; they may start at multiples of ", step, " only");
}

/// True if no element is named twice; a write that names one twice has no defined result.
inline bool names_each_element_once(std::span<Axis const> axes) {
  std::array<Axis, Access::most_axes> sorted{};
  std::ranges::copy(axes, sorted.begin());
  std::ranges::sort(sorted, {}, &Axis::stride);
  Index reach = 0;
  for (Axis const& axis : sorted) {
    if (axis.count <= 1) continue;
    if (axis.stride <= reach) return false;
    reach = saturating_add(reach, saturating_multiply(axis.stride, axis.count - 1));
  }
  return true;
}

/// Kind of instruction that an operand belongs to. Compute engines start at multiples of 32 partitions (quadrants); DMA
/// uses addresses and starts at any partition. The number of columns of a matmul's result has its own limit.
enum class OperandOf { engine, dma, product };

/// Rules of an operand in SBUF or PSUM.
inline void check_tile_operand(std::string_view keyword, Use use, Access const& access, OperandOf whose,
                               Site const& site) {
  Buffer const& buffer = site.buffer(access);
  Limits const& limits = site.limits;
  site.require(access.age >= 0 && access.age < buffer.rotation, "lifetime", keyword, "tile ", buffer.name, " made ",
               access.age, " allocations ago; the last ", buffer.rotation, " are kept");
  bool const fits = site.require(access.partitions() <= limits.partitions, "R1", keyword, access.partitions(),
                                 " partitions; at most ", limits.partitions);
  bool const starts =
      whose == OperandOf::dma || require_start_partition(access.start_partition, access.partitions(), keyword, site);
  if (fits && starts)
    site.require(access.start_partition >= 0 && access.start_partition + access.partitions() <= buffer.partitions(),
                 "R2", keyword, "partitions ", access.start_partition, "..",
                 access.start_partition + access.partitions() - 1, " of tile ", buffer.name, ", which has ",
                 buffer.partitions());
  auto const free_axes = static_cast<Index>(access.free_axes().size());
  site.require(free_axes >= 1 && free_axes <= limits.free_axes, "R17", keyword, free_axes, " free axes; 1 to ",
               limits.free_axes, " are accepted");
  bool strides_fit = true;
  for (Axis const& axis : access.free_axes()) {
    site.require(axis.count <= limits.axis_count, "R17", keyword, "an axis of ", axis.count, " elements; at most ",
                 limits.axis_count);
    strides_fit = site.require(axis.stride >= 0 && axis.stride <= limits.axis_stride, "R17", keyword, "stride ",
                               axis.stride, "; accepted: 0 to ", limits.axis_stride) &&
                  strides_fit;
  }
  Index const most = buffer.memory == Memory::psum ? limits.psum_elements : limits.sbuf_elements;
  site.require(access.elements() <= most || whose == OperandOf::product, "R17", keyword, access.elements(),
               " elements per partition in ", name_of(buffer.memory), "; at most ", most);
  site.require(!access.register_offset, "R17", keyword, "a register in the offset of a tile; accepted in HBM only");
  if (!strides_fit) return;
  ValueRange const offset = site.scope.range_of(access.offset);
  Index const last = saturating_add(offset.high, access.extremes(1).second);
  site.require(offset.low >= 0 && last < buffer.elements_per_partition(), "R2", keyword, "elements ", offset.low, "..",
               last, " of a partition of tile ", buffer.name, ", which has ", buffer.elements_per_partition());
  if (use != Use::read)
    site.require(names_each_element_once(access.free_axes()), "R17", keyword,
                 "the pattern names an element twice; a destination names each once");
}

/// Rules of an operand in HBM. A register offset is assumed to hold any rank of the ring.
inline void check_tensor_operand(std::string_view keyword, Use use, Access const& access, Site const& site) {
  Buffer const& buffer = site.buffer(access);
  site.require(access.age == 0 && access.start_partition == 0, "form", keyword, "age ", access.age,
               " and start partition ", access.start_partition, " of tensor ", buffer.name,
               "; tensors in HBM have neither");
  if (use == Use::write)
    site.require(buffer.role != Role::input, "R16", keyword, "writes input ", buffer.name,
                 "; kernels are functions of their inputs");
  for (Axis const& axis : access.axes())
    if (!site.require(axis.stride >= 0, "R17", keyword, "stride ", axis.stride, "; at least 0 is accepted")) return;
  ValueRange offset = site.scope.range_of(access.offset);
  if (access.register_offset) {
    int const dimension = access.register_offset->dimension;
    if (!site.require(dimension >= 0 && dimension < static_cast<int>(buffer.shape.size()), "R17", keyword,
                      "a register counts dimension ", dimension, " of tensor ", buffer.name, ", which has ",
                      buffer.shape.size()))
      return;
    Index stride = 1;
    for (std::size_t i = static_cast<std::size_t>(dimension) + 1; i < buffer.shape.size(); ++i)
      stride = saturating_multiply(stride, buffer.shape[i]);
    offset.high = saturating_add(offset.high, saturating_multiply(stride, site.program.ranks - 1));
  }
  Index const last = saturating_add(offset.high, access.extremes(0).second);
  site.require(offset.low >= 0 && last < buffer.size(), "R17", keyword, "elements ", offset.low, "..", last,
               " of tensor ", buffer.name, ", which has ", buffer.size(),
               access.register_offset ? message_of("; its register counts ranks 0..", site.program.ranks - 1) : "");
  if (use == Use::write)
    site.require(names_each_element_once(access.axes()), "R17", keyword,
                 "the pattern names an element twice; a destination names each once");
}

inline void check_operand(std::string_view keyword, Use use, Access const& access, OperandOf whose, Site const& site) {
  if (on_chip(site.memory(access)))
    check_tile_operand(keyword, use, access, whose, site);
  else
    check_tensor_operand(keyword, use, access, site);
}

/// Requires a memory that the engine can reach. TensorE's instructions check theirs in tensor_engine_rules.hpp.
inline bool require_reach(Engine engine, std::string_view keyword, Access const& access, Site const& site) {
  Memory const memory = site.memory(access);
  if (engine == Engine::dma)
    return site.require(memory != Memory::psum, "R6", keyword, site.buffer(access).name,
                        " is in psum; DMA reaches sbuf and HBM");
  if (engine == Engine::gpsimd)
    return site.require(memory == Memory::sbuf, "R6", keyword, site.buffer(access).name, " is in ", name_of(memory),
                        "; gpsimd reaches sbuf only");
  return site.require(on_chip(memory), "R6", keyword, site.buffer(access).name, " is in ", name_of(memory), "; ",
                      name_of(engine), " reaches sbuf and psum");
}

/// Requires a result type that PSUM takes: 4 bytes, or bfloat16 on generations that have it. Transposes copy bits and
/// are exempt.
inline void require_psum_type(std::string_view keyword, Access const& access, Site const& site) {
  ElementType const type = site.type(access);
  bool const accepted = bytes_of(type) == 4 || (type == ElementType::bfloat16 && site.limits.has_bfloat16_psum);
  site.require(site.memory(access) != Memory::psum || accepted, "R18", keyword, "writes ", name_of(type),
               " to psum tile ", site.buffer(access).name, "; ", name_of(site.program.target), " writes 4-byte types ",
               site.limits.has_bfloat16_psum ? "and bfloat16 " : "", "there, ",
               site.limits.has_bfloat16_psum ? "others" : "narrower ones", " by nc_transpose only");
}

}  // namespace annulus::nki::validate_detail
