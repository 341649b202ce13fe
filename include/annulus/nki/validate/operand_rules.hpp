#pragma once
// The place of an instruction in a program, with the range of values of each loop variable there; and the rules on its
// operands: of each (indices, memory, partitions, access pattern, bounds), and relative to each other (shapes, scalars,
// engines, operators).

#include <ostream>

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/validate/findings.hpp"

namespace annulus::nki::validate_detail {

/// Closed interval [low, high].
struct ValueRange {
  Index low = 0, high = 0;
};

/// Appends a part to the text of a place, such as: section "step" 3, key_tile_2 = 5, core 1
template <class... Parts>
void append_part(std::string& place, Parts const&... parts) {
  place += detail::message_of(place.empty() ? "" : ", ", parts...);
}

/// The sections, loops and core branches around the current node; bounds index expressions by interval arithmetic.
class Scope {
 public:
  explicit Scope(Program const& program)
      : program_(&program), ranges_(std::max<std::size_t>(program.variables.size(), core_variable + 1)) {
    ranges_[core_variable] = {0, program.cores - 1};
  }

  /// Calls inside() with the loop's variable in scope.
  template <class Inside>
  void in_loop(Loop const& loop, Inside&& inside) {
    nth(ranges_, loop.variable) = {0, std::max<Index>(loop.count - 1, 0)};
    loops_.push_back(&loop);
    inside();
    loops_.pop_back();
  }

  /// Calls inside() with the core variable fixed to `core`.
  template <class Inside>
  void on_core(int core, Inside&& inside) {
    ValueRange const before = std::exchange(ranges_[core_variable], {core, core});
    bool const was_one = std::exchange(on_one_core_, true);
    inside();
    on_one_core_ = was_one;
    ranges_[core_variable] = before;
  }

  void begin(Section const& section) { section_ = &section; }

  bool on_one_core() const { return on_one_core_; }
  /// True if the variable is in scope: the core, or that of an enclosing loop.
  bool knows(Variable variable) const {
    return variable == core_variable || std::ranges::find(loops_, variable, &Loop::variable) != loops_.end();
  }
  bool knows_all_of(Affine const& affine) const {
    return std::ranges::all_of(affine.terms(), [&](Affine::Term const& term) { return knows(term.variable); });
  }
  /// Bounds of an expression whose variables are all in scope; saturates instead of overflowing.
  ValueRange range_of(Affine const& affine) const {
    ValueRange range{affine.constant(), affine.constant()};
    for (Affine::Term const& term : affine.terms()) {
      ValueRange const values = nth(ranges_, term.variable);
      bool const falls = term.coefficient < 0;
      range.low = detail::saturating_sum(
          range.low, detail::saturating_product(term.coefficient, falls ? values.high : values.low));
      range.high = detail::saturating_sum(
          range.high, detail::saturating_product(term.coefficient, falls ? values.low : values.high));
    }
    return range;
  }

  /// Text such as: section "step" 1..7, key_tile_2 = 0..3, core 1
  std::string place() const {
    std::string text;
    if (section_)
      append_part(text, "section \"", section_->name, "\" ",
                  knows_all_of(section_->number) ? text_of(range_of(section_->number)) : std::string("last"));
    for (Loop const* loop : loops_) {
      auto const variable = static_cast<std::size_t>(loop->variable);
      append_part(text, program_->variables[variable], " = ", text_of(ranges_[variable]));
    }
    if (on_one_core_) append_part(text, "core ", ranges_[core_variable].low);
    return text;
  }

 private:
  static std::string text_of(ValueRange range) {
    return range.low == range.high ? detail::message_of(range.low) : detail::message_of(range.low, "..", range.high);
  }

  Program const* program_;
  std::vector<ValueRange> ranges_;
  std::vector<Loop const*> loops_;
  Section const* section_ = nullptr;
  bool on_one_core_ = false;
};

/// Passed to every rule; refers to the program, hardware, scope and fault list, which outlive it.
class Site {
 public:
  Site(Program const& of, Hardware const& on, Scope const& in, FaultList& faults, void const* node,
       std::string_view name)
      : program(of), limits(on.limits), scope(in), faults_(&faults), node_(node), name_(name) {}

  Program const& program;
  Limits const& limits;
  Scope const& scope;

  Buffer const& buffer(Access const& access) const { return program.buffer(access); }
  Memory memory(Access const& access) const { return buffer(access).memory; }
  ElementType type(Access const& access) const { return buffer(access).type; }

  /// Returns `holds`; if false, reports a finding whose message is `parts` concatenated.
  template <class... Parts>
  bool require(bool holds, Rule rule, std::string_view operand, Parts const&... parts) const {
    if (!holds)
      faults_->add(
          node_, rule, name_, [&] { return scope.place(); }, operand, parts...);
    return holds;
  }

 private:
  FaultList* faults_;
  void const* node_;
  std::string_view name_;
};

inline bool require_register(std::string_view keyword, int number, Site const& site) {
  return site.require(number >= 0 && number < std::ssize(site.program.registers), Rule::form, keyword, "register ",
                      number, "; the program has ", site.program.registers.size(), " registers");
}

/// Visitor of for_each_access: checks that buffers and registers exist and that index expressions use variables in
/// scope only; later rules rely on it.
struct IndexRules {
  Site const& site;
  bool hold = true;

  void operator()(std::string_view keyword, Affine const& index) {
    for (Affine::Term const& term : index.terms())
      need(site.scope.knows(term.variable), keyword, "an index depends on variable ", term.variable,
           ", which no loop around it counts; accepted: 0 (the core) and the variables of those loops");
  }
  void operator()(std::string_view keyword, Use, Access const& access) {
    auto const count = static_cast<int>(site.program.buffers.size());
    need(access.buffer >= 0 && access.buffer < count, keyword, "buffer ", access.buffer, "; the program has ", count,
         " buffers");
    (*this)(keyword, access.offset);
    need(!access.axes().empty(), keyword, "no axes; at least the partition axis is needed");
    for (Axis const& axis : access.axes())
      need(axis.count >= 1, keyword, "an axis of ", axis.count, " elements; at least 1 is needed");
    if (access.register_offset) hold = require_register(keyword, access.register_offset->register_number, site) && hold;
  }

 private:
  template <class... Parts>
  void need(bool holds, std::string_view keyword, Parts const&... parts) {
    hold = site.require(holds, Rule::form, keyword, parts...) && hold;
  }
};

inline bool require_start_partition(Index start, Index partitions, std::string_view keyword, Site const& site) {
  Index const step = partitions > 64 ? 128 : partitions > 32 ? 64 : 32;
  return site.require(start >= 0 && start % step == 0, Rule::partitions, keyword, partitions,
                      " partitions from partition ", start, "; they may start at multiples of ", step, " only");
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
    reach = detail::saturating_sum(reach, detail::saturating_product(axis.stride, axis.count - 1));
  }
  return true;
}

/// Kind of instruction that an operand belongs to. Compute engines start at multiples of 32 partitions (quadrants); DMA
/// uses addresses and starts at any partition. The number of columns of a matmul's result has its own limit.
enum class OperandOf { engine, dma, product };

/// Rules of an operand in SBUF or PSUM. Returns whether its strides are accepted.
inline bool check_tile_operand(std::string_view keyword, Access const& access, OperandOf whose, Site const& site) {
  Buffer const& buffer = site.buffer(access);
  Limits const& limits = site.limits;
  site.require(access.age >= 0 && access.age < buffer.rotation, Rule::lifetime, keyword, "tile ", buffer.name, " made ",
               access.age, " allocations ago; the last ", buffer.rotation, " are kept");
  bool const fits = site.require(access.partitions() <= limits.partitions, Rule::partitions, keyword,
                                 access.partitions(), " partitions; at most ", limits.partitions);
  bool const starts =
      whose == OperandOf::dma || require_start_partition(access.start_partition, access.partitions(), keyword, site);
  Index const end = detail::saturating_sum(access.start_partition, access.partitions());
  if (fits && starts)
    site.require(access.start_partition >= 0 && end <= buffer.partitions(), Rule::capacity, keyword, "partitions ",
                 access.start_partition, "..", end - 1, " of tile ", buffer.name, ", which has ", buffer.partitions());
  auto const free_axes = static_cast<Index>(access.free_axes().size());
  site.require(free_axes >= 1 && free_axes <= limits.free_axes, Rule::access_pattern, keyword, free_axes,
               " free axes; 1 to ", limits.free_axes, " are accepted");
  bool strides_fit = true;
  for (Axis const& axis : access.free_axes()) {
    site.require(axis.count <= limits.axis_count, Rule::access_pattern, keyword, "an axis of ", axis.count,
                 " elements; at most ", limits.axis_count);
    strides_fit = site.require(axis.stride >= 0 && axis.stride <= limits.axis_stride, Rule::access_pattern, keyword,
                               "stride ", axis.stride, "; accepted: 0 to ", limits.axis_stride) &&
                  strides_fit;
  }
  Index const most = buffer.memory == Memory::psum ? limits.psum_elements : limits.sbuf_elements;
  site.require(access.elements() <= most || whose == OperandOf::product, Rule::access_pattern, keyword,
               access.elements(), " elements per partition in ", name_of(buffer.memory), "; at most ", most);
  site.require(!access.register_offset, Rule::access_pattern, keyword,
               "a register in the offset of a tile; accepted in HBM only");
  return strides_fit;
}

/// Rules of an operand in HBM. Returns whether its strides and its register are accepted.
inline bool check_tensor_operand(std::string_view keyword, Use use, Access const& access, Site const& site) {
  Buffer const& buffer = site.buffer(access);
  site.require(access.age == 0 && access.start_partition == 0, Rule::form, keyword, "age ", access.age,
               " and start partition ", access.start_partition, " of tensor ", buffer.name,
               "; tensors in HBM have neither");
  if (use == Use::write)
    site.require(buffer.role != Role::input, Rule::inputs_and_outputs, keyword, "writes input ", buffer.name,
                 "; kernels are functions of their inputs");
  for (Axis const& axis : access.axes())
    if (!site.require(axis.stride >= 0, Rule::access_pattern, keyword, "stride ", axis.stride,
                      "; at least 0 is accepted"))
      return false;
  if (!access.register_offset) return true;
  int const dimension = access.register_offset->dimension;
  return site.require(dimension >= 0 && dimension < static_cast<int>(buffer.shape.size()), Rule::access_pattern,
                      keyword, "a register counts dimension ", dimension, " of tensor ", buffer.name, ", which has ",
                      buffer.shape.size());
}

/// Rules of every operand. A register is assumed to hold any of its values.
inline void check_operand(std::string_view keyword, Use use, Access const& access, OperandOf whose, Site const& site) {
  Buffer const& buffer = site.buffer(access);
  bool const chip = on_chip(buffer.memory);
  if (!(chip ? check_tile_operand(keyword, access, whose, site) : check_tensor_operand(keyword, use, access, site)))
    return;
  ValueRange const offset = site.scope.range_of(access.offset);
  Index last = detail::saturating_sum(offset.high, access.extremes(chip ? 1 : 0).second);
  bool const moves = !chip && access.register_offset;
  Index const moved = moves ? nth(site.program.registers, access.register_offset->register_number).largest() : 0;
  if (moves)
    last = detail::saturating_sum(last,
                                  detail::saturating_product(buffer.stride(access.register_offset->dimension), moved));
  site.require(offset.low >= 0 && last < buffer.elements_per_partition(), chip ? Rule::capacity : Rule::access_pattern,
               keyword, "elements ", offset.low, "..", last, chip ? " of a partition of tile " : " of tensor ",
               buffer.name, ", which has ", buffer.elements_per_partition(),
               moves ? detail::message_of("; its register holds up to ", moved) : "");
  if (use != Use::read)
    site.require(names_each_element_once(chip ? access.free_axes() : access.axes()), Rule::access_pattern, keyword,
                 "the pattern names an element twice; a destination names each once");
}

template <class... Parts>
bool require_memory(bool holds, Rule rule, std::string_view keyword, Access const& access, Site const& site,
                    Parts const&... accepted) {
  return site.require(holds, rule, keyword, site.buffer(access).name, " is in ", name_of(site.memory(access)), "; ",
                      accepted...);
}
template <class... Parts>
bool require_type(bool holds, Rule rule, std::string_view keyword, Access const& access, Site const& site,
                  Parts const&... accepted) {
  return site.require(holds, rule, keyword, "is ", name_of(site.type(access)), "; ", accepted...);
}

/// Requires a memory that the engine can reach. TensorE's instructions check theirs.
inline bool require_reach(Engine engine, std::string_view keyword, Access const& access, Site const& site) {
  Memory const memory = site.memory(access);
  if (engine == Engine::dma)
    return require_memory(memory != Memory::psum, Rule::reach, keyword, access, site, "DMA reaches sbuf and HBM");
  if (engine == Engine::gpsimd)
    return require_memory(memory == Memory::sbuf, Rule::reach, keyword, access, site, "gpsimd reaches sbuf only");
  return require_memory(on_chip(memory), Rule::reach, keyword, access, site, name_of(engine), " reaches sbuf and psum");
}

/// Requires a result type that PSUM takes: 4 bytes, or bfloat16 on generations that have it. Transposes copy bits and
/// are exempt.
inline void require_psum_type(std::string_view keyword, Access const& access, Site const& site) {
  ElementType const type = site.type(access);
  bool const accepted = bytes_of(type) == 4 || (type == ElementType::bfloat16 && site.limits.has_bfloat16_psum);
  site.require(site.memory(access) != Memory::psum || accepted, Rule::generation, keyword, "writes ", name_of(type),
               " to psum tile ", site.buffer(access).name, "; ", name_of(site.program.target), " writes 4-byte types ",
               site.limits.has_bfloat16_psum ? "and bfloat16 " : "", "there, ",
               site.limits.has_bfloat16_psum ? "others" : "narrower ones", " by nc_transpose only");
}

/// Partitions x elements per partition.
struct Extents {
  Index partitions, elements;
  bool operator==(Extents const&) const = default;
  friend std::ostream& operator<<(std::ostream& out, Extents const& extents) {
    return out << extents.partitions << " x " << extents.elements;
  }
};
inline Extents extents_of(Access const& access) { return {access.partitions(), access.elements()}; }

/// Requires the partitions and the elements per partition of dst; free axes may be split differently.
inline void require_same_shape(std::string_view keyword, Access const& access, Access const& dst, Site const& site) {
  site.require(extents_of(access) == extents_of(dst), Rule::shape, keyword, "is ", extents_of(access), "; dst is ",
               extents_of(dst), ", and both must be equal");
}

inline void require_same_type(Rule rule, Access const& dst, std::string_view keyword, Access const& access,
                              Site const& site) {
  require_type(site.type(dst) == site.type(access), rule, "dst", dst, site, keyword, " is ", name_of(site.type(access)),
               ", and both must be equal");
}

/// Requires one element in each of `partitions` partitions.
inline bool require_column(std::string_view keyword, Access const& access, Index partitions, Site const& site) {
  return site.require(extents_of(access) == Extents{partitions, 1}, Rule::columns, keyword, "is ", extents_of(access),
                      "; accepted: ", partitions, " x 1");
}

/// Accepted element types of a scalar operand that is given as a column.
enum class ColumnType { float32, any };

/// Requires a number, or a column of `partitions` x 1 of an accepted type.
inline void require_scalar(std::string_view keyword, Scalar const& scalar, Index partitions, ColumnType type,
                           Site const& site) {
  auto const* access = std::get_if<Access>(&scalar);
  if (access && require_column(keyword, *access, partitions, site) && type == ColumnType::float32)
    require_type(site.type(*access) == ElementType::float32, Rule::columns, keyword, *access, site,
                 "accepted: a number or a column of float32");
}

inline void require_not_both_psum(std::string_view first_keyword, Access const& first, std::string_view second_keyword,
                                  Access const& second, Site const& site) {
  site.require(site.memory(first) != Memory::psum || site.memory(second) != Memory::psum, Rule::psum_inputs,
               second_keyword, "is in psum (", site.buffer(second).name, "), and so is ", first_keyword, " (",
               site.buffer(first).name, "); at most one of the two may be");
}

template <class Name>
bool require_one_of(Rule rule, std::string_view keyword, Name name, std::initializer_list<Name> accepted,
                    Site const& site) {
  std::string names;
  for (Name one : accepted) names += (names.empty() ? "" : ", ") + std::string(name_of(one));
  return site.require(std::ranges::find(accepted, name) != accepted.end(), rule, keyword, name_of(name),
                      "; accepted: ", names);
}

/// For instructions of VectorE, ScalarE and GpSimdE: engine, memories of all operands, and types of results in PSUM.
/// Returns whether the engine is accepted; the rules of others are unknown.
template <class I>
bool check_reach(I const& i, Site const& site) {
  if constexpr (requires { I::engines; })
    if (!require_one_of(Rule::engine, "engine", i.engine, I::engines, site)) return false;
  for_each_access(i, [&](std::string_view keyword, Use use, Access const& access) {
    if (require_reach(i.engine, keyword, access, site) && use != Use::read) require_psum_type(keyword, access, site);
  });
  return true;
}
/// The same for instructions with a tensor whose shape must be that of dst.
template <class I>
bool check_elementwise(I const& i, std::string_view keyword, Access const& tensor, Site const& site) {
  bool const known = check_reach(i, site);
  if (known) require_same_shape(keyword, tensor, i.dst, site);
  return known;
}

}  // namespace annulus::nki::validate_detail
