#pragma once
// The place of an instruction in a program, with the range of values of each loop variable there; and the rules on its
// operands: of each (indices, memory, partitions, access pattern, bounds), and relative to each other (shapes, scalars,
// engines, operators).

#include <algorithm>
#include <array>
#include <concepts>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/validate/findings.hpp"

namespace annulus::nki::validate_detail {

/// Closed interval [low, high].
struct ValueRange {
  Index low = 0, high = 0;

  /// Adds 0 to `distance`.
  void extend(Index distance) {
    Index& end = distance < 0 ? low : high;
    end = detail::saturating_sum(end, distance);
  }
  std::string text() const { return low == high ? concat(low) : concat(low, "..", high); }
};

/// The sections, loops and core branches around the current node; bounds index expressions by interval arithmetic.
class Scope {
 public:
  explicit Scope(Program const& program) : program_(&program) {}

  /// Calls inside() with the loop's variable in scope.
  template <class Inside>
  void in_loop(Loop const& loop, Inside&& inside) {
    loops_.push_back(&loop);
    inside();
    loops_.pop_back();
  }
  /// Calls inside() with the core variable fixed to `core`.
  template <class Inside>
  void on_core(int core, Inside&& inside) {
    int const before = std::exchange(core_, core);
    inside();
    core_ = before;
  }
  void begin(Section const& section) { section_ = &section; }

  int core() const { return core_; }  ///< of the branch of one core; -1: none
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
    for (auto const& [variable, coefficient] : affine.terms()) {
      ValueRange const values = values_of(variable);
      Index const at_low = detail::saturating_product(coefficient, values.low),
                  at_high = detail::saturating_product(coefficient, values.high);
      range.low = detail::saturating_sum(range.low, std::min(at_low, at_high));
      range.high = detail::saturating_sum(range.high, std::max(at_low, at_high));
    }
    return range;
  }

  /// Text such as: section "step" 1..7, key_tile_2 = 0..3, core 1
  std::string place() const {
    std::vector<std::string> parts;
    if (section_)
      parts.push_back(concat("section \"", section_->name, "\" ",
                             knows_all_of(section_->number) ? range_of(section_->number).text() : "last"));
    for (Loop const* loop : loops_)
      parts.push_back(concat(nth(program_->variables, loop->variable), " = ", values_of(loop->variable).text()));
    if (core_ >= 0) parts.push_back(concat("core ", core_));
    return joined(parts);
  }

 private:
  ValueRange values_of(Variable variable) const {
    if (variable == core_variable) return core_ < 0 ? ValueRange{0, program_->cores - 1} : ValueRange{core_, core_};
    Loop const& loop = **std::ranges::find(loops_, variable, &Loop::variable);
    return {0, std::max<Index>(loop.count - 1, 0)};
  }

  Program const* program_;
  std::vector<Loop const*> loops_;
  Section const* section_ = nullptr;
  int core_ = -1;
};

/// Partitions x elements per partition.
struct Extents {
  Index partitions, elements;
  bool operator==(Extents const&) const = default;
  friend std::ostream& operator<<(std::ostream& out, Extents const& extents) {
    return out << extents.partitions << " x " << extents.elements;
  }
};
inline Extents extents_of(Access const& access) { return {access.partitions(), access.elements()}; }

/// True if no element is named twice; a write that names one twice has no defined result.
inline bool names_each_element_once(std::span<Axis const> axes) {
  std::array<Axis, Access::most_axes> by_stride{};
  std::ranges::copy(axes, by_stride.begin());
  std::ranges::sort(by_stride, {}, &Axis::stride);
  Index reach = 0;
  for (Axis const& axis : by_stride) {
    if (axis.count <= 1) continue;
    if (axis.stride <= reach) return false;
    reach = detail::saturating_sum(reach, detail::saturating_product(axis.stride, axis.count - 1));
  }
  return true;
}

/// Accepted element types of a scalar operand that is given as a column.
enum class ColumnType { float32, any };

/// Rules on the operands of the current node. Refers to the program, hardware and fault list, which outlive it.
class OperandRules {
 protected:
  OperandRules(Program const& program, Hardware const& hardware, FaultList& faults)
      : program_(program), limits_(hardware.limits), faults_(faults), scope_(program) {
    begin(&program, "program");
  }

  /// Makes a node the current one; `name` is its name in findings.
  void begin(void const* node, std::string_view name) {
    node_ = node;
    name_ = name;
  }

  Memory memory(Access const& access) const { return program_.buffer(access).memory; }
  ElementType type(Access const& access) const { return program_.buffer(access).type; }

  /// Returns `holds`; if false, reports a finding whose message is `parts` concatenated.
  template <class... Parts>
  bool require(bool holds, Rule rule, std::string_view operand, Parts const&... parts) {
    if (!holds)
      faults_.add(
          node_, rule, name_, operand, [&] { return scope_.place(); }, parts...);
    return holds;
  }
  /// Requires `count` to be at most `most`; `what` is counted.
  bool require_at_most(Index most, Index count, Rule rule, std::string_view keyword, std::string_view what) {
    return require(count <= most, rule, keyword, count, what, "; at most ", most);
  }

  void require_axes(std::string_view keyword, Index axes, std::string_view what) {
    require(axes >= 1 && axes <= limits_.free_axes, Rule::access_pattern, keyword, axes, what, "; 1 to ",
            limits_.free_axes, " are accepted");
  }
  bool require_register(std::string_view keyword, int number) {
    return require(number >= 0 && number < std::ssize(program_.registers), Rule::form, keyword, "register ", number,
                   "; the program has ", program_.registers.size(), " registers");
  }
  bool require_buffer(std::string_view keyword, int number, std::string_view what) {
    return require(number >= 0 && number < std::ssize(program_.buffers), Rule::form, keyword, what, number,
                   "; the program has ", program_.buffers.size(), " buffers");
  }

  /// Requires buffers and registers that exist, and indices of variables in scope; later rules rely on it.
  template <class I>
  bool check_references(I const& instruction) {
    bool hold = true;
    auto const need = [&](bool holds) { hold = hold && holds; };
    auto const need_known = [&](std::string_view keyword, Affine const& index) {
      for (Affine::Term const& term : index.terms())
        need(require(scope_.knows(term.variable), Rule::form, keyword, "an index depends on variable ", term.variable,
                     ", which no loop around it counts; accepted: 0 (the core) and the variables of those loops"));
    };
    for_each_field(instruction, [&]<class Value>(std::string_view keyword, Value const& value, Use) {
      if constexpr (std::same_as<Value, Affine>) need_known(keyword, value);
      if constexpr (std::same_as<Value, Access>) {
        need(require_buffer(keyword, value.buffer, "buffer "));
        need_known(keyword, value.offset);
        need(require(!value.axes().empty(), Rule::form, keyword, "no axes; at least the partition axis is needed"));
        for (Axis const& axis : value.axes())
          need(require(axis.count >= 1, Rule::form, keyword, "an axis of ", axis.count,
                       " elements; at least 1 is needed"));
        if (value.register_offset) need(require_register(keyword, value.register_offset->register_number));
      }
    });
    return hold;
  }

  /// Rules of every operand. A register is assumed to hold any of its values.
  void check_operand(std::string_view keyword, Use use, Access const& access, Engine engine) {
    Buffer const& buffer = program_.buffer(access);
    bool const chip = on_chip(buffer.memory);
    if (!(chip ? check_tile_operand(keyword, use, access, engine) : check_tensor_operand(keyword, use, access))) return;
    ValueRange range = scope_.range_of(access.offset);
    range.extend(access.extremes(chip ? 1 : 0).second);
    bool const moves = !chip && access.register_offset;
    Index const moved = moves ? nth(program_.registers, access.register_offset->register_number).largest() : 0;
    if (moves) range.extend(detail::saturating_product(buffer.stride(access.register_offset->dimension), moved));
    require(range.low >= 0 && range.high < buffer.elements_per_partition(),
            chip ? Rule::capacity : Rule::access_pattern, keyword, "elements ", range.low, "..", range.high,
            chip ? " of a partition of tile " : " of tensor ", buffer.name, ", which has ",
            buffer.elements_per_partition(), moves ? detail::message_of("; its register holds up to ", moved) : "");
    if (use != Use::read)
      require(names_each_element_once(chip ? access.free_axes() : access.axes()), Rule::access_pattern, keyword,
              "the pattern names an element twice; a destination names each once");
  }

  template <class... Parts>
  bool require_memory(bool holds, Rule rule, std::string_view keyword, Access const& access, Parts const&... accepted) {
    return require(holds, rule, keyword, program_.buffer(access).name, " is in ", name_of(memory(access)), "; ",
                   accepted...);
  }
  template <class... Parts>
  bool require_type(bool holds, Rule rule, std::string_view keyword, Access const& access, Parts const&... accepted) {
    return require(holds, rule, keyword, "is ", name_of(type(access)), "; ", accepted...);
  }

  /// Requires the partitions and the elements per partition of dst; free axes may be split differently.
  void require_same_shape(std::string_view keyword, Access const& access, Access const& dst) {
    require(extents_of(access) == extents_of(dst), Rule::shape, keyword, "is ", extents_of(access), "; dst is ",
            extents_of(dst), ", and both must be equal");
  }
  void require_same_type(Rule rule, Access const& dst, std::string_view keyword, Access const& access) {
    require_type(type(dst) == type(access), rule, "dst", dst, keyword, " is ", name_of(type(access)),
                 ", and both must be equal");
  }
  /// `why` says where the accepted extents come from.
  bool require_extents(Rule rule, std::string_view keyword, Access const& access, Extents accepted,
                       std::string_view why) {
    return require(extents_of(access) == accepted, rule, keyword, "is ", extents_of(access), "; ", why, accepted);
  }
  /// Requires one element in each of `partitions` partitions.
  bool require_column(std::string_view keyword, Access const& access, Index partitions) {
    return require_extents(Rule::columns, keyword, access, {partitions, 1}, "accepted: ");
  }
  /// Requires a number, or a column of `partitions` x 1 of an accepted type.
  void require_scalar(std::string_view keyword, Scalar const& scalar, Index partitions, ColumnType accepted) {
    auto const* access = std::get_if<Access>(&scalar);
    if (access && require_column(keyword, *access, partitions) && accepted == ColumnType::float32)
      require_type(type(*access) == ElementType::float32, Rule::columns, keyword, *access,
                   "accepted: a number or a column of float32");
  }
  void require_not_both_psum(std::string_view first_keyword, Access const& first, std::string_view second_keyword,
                             Access const& second) {
    require(memory(first) != Memory::psum || memory(second) != Memory::psum, Rule::psum_inputs, second_keyword,
            "is in psum (", program_.buffer(second).name, "), and so is ", first_keyword, " (",
            program_.buffer(first).name, "); at most one of the two may be");
  }
  template <class Name>
  bool require_one_of(Rule rule, std::string_view keyword, Name name, std::initializer_list<Name> accepted) {
    std::string names;
    for (Name one : accepted) (names += names.empty() ? "" : ", ") += name_of(one);
    return require(std::ranges::find(accepted, name) != accepted.end(), rule, keyword, name_of(name),
                   "; accepted: ", names);
  }

  /// Requires a memory that the engine can reach. TensorE's instructions check theirs.
  bool require_reach(Engine engine, std::string_view keyword, Access const& access) {
    Memory const where = memory(access);
    if (engine == Engine::dma)
      return require_memory(where != Memory::psum, Rule::reach, keyword, access, "DMA reaches sbuf and HBM");
    if (engine == Engine::gpsimd)
      return require_memory(where == Memory::sbuf, Rule::reach, keyword, access, "gpsimd reaches sbuf only");
    return require_memory(on_chip(where), Rule::reach, keyword, access, name_of(engine), " reaches sbuf and psum");
  }
  /// For instructions of VectorE, ScalarE and GpSimdE: engine, memories of all operands, and types of results in PSUM.
  /// Returns whether the engine is accepted; the rules of others are unknown.
  template <class I>
  bool check_reach(I const& i) {
    if constexpr (requires { I::engines; })
      if (!require_one_of(Rule::engine, "engine", i.engine, I::engines)) return false;
    for_each_access(i, [&](std::string_view keyword, Use use, Access const& access) {
      if (require_reach(i.engine, keyword, access) && use != Use::read) require_psum_type(keyword, access);
    });
    return true;
  }
  /// The same for instructions with a tensor whose shape must be that of dst.
  template <class I>
  bool check_elementwise(I const& i, std::string_view keyword, Access const& tensor) {
    bool const known = check_reach(i);
    if (known) require_same_shape(keyword, tensor, i.dst);
    return known;
  }

  Program const& program_;
  Limits const& limits_;
  FaultList& faults_;
  Scope scope_;

 private:
  /// Rules of an operand in SBUF or PSUM. Returns whether its strides are accepted. Compute engines start at multiples
  /// of 32 partitions (quadrants); DMA uses addresses and starts at any partition. The number of columns of a result of
  /// TensorE has its own limit.
  bool check_tile_operand(std::string_view keyword, Use use, Access const& access, Engine engine) {
    Buffer const& buffer = program_.buffer(access);
    require(access.age >= 0 && access.age < buffer.rotation, Rule::lifetime, keyword, "tile ", buffer.name, " made ",
            access.age, " allocations ago; the last ", buffer.rotation, " are kept");
    Index const start = access.start_partition, partitions = access.partitions(),
                step = partitions > 64   ? 128
                       : partitions > 32 ? 64
                                         : 32;
    bool const fits = require_at_most(limits_.partitions, partitions, Rule::partitions, keyword, " partitions");
    bool const starts = engine == Engine::dma || require(start >= 0 && start % step == 0, Rule::partitions, keyword,
                                                         partitions, " partitions from partition ", start,
                                                         "; they may start at multiples of ", step, " only");
    Index const end = detail::saturating_sum(start, partitions);
    if (fits && starts)
      require(start >= 0 && end <= buffer.partitions(), Rule::capacity, keyword, "partitions ", start, "..", end - 1,
              " of tile ", buffer.name, ", which has ", buffer.partitions());
    require_axes(keyword, std::ssize(access.free_axes()), " free axes");
    bool strides_fit = true;
    for (Axis const& axis : access.free_axes()) {
      require(axis.count <= limits_.axis_count, Rule::access_pattern, keyword, "an axis of ", axis.count,
              " elements; at most ", limits_.axis_count);
      strides_fit = require(axis.stride >= 0 && axis.stride <= limits_.axis_stride, Rule::access_pattern, keyword,
                            "stride ", axis.stride, "; accepted: 0 to ", limits_.axis_stride) &&
                    strides_fit;
    }
    Index const most = buffer.memory == Memory::psum ? limits_.psum_elements : limits_.sbuf_elements;
    require(access.elements() <= most || (engine == Engine::tensor && use != Use::read), Rule::access_pattern, keyword,
            access.elements(), " elements per partition in ", name_of(buffer.memory), "; at most ", most);
    require(!access.register_offset, Rule::access_pattern, keyword,
            "a register in the offset of a tile; accepted in HBM only");
    return strides_fit;
  }

  /// Rules of an operand in HBM. Returns whether its strides and its register are accepted.
  bool check_tensor_operand(std::string_view keyword, Use use, Access const& access) {
    Buffer const& buffer = program_.buffer(access);
    require(access.age == 0 && access.start_partition == 0, Rule::form, keyword, "age ", access.age,
            " and start partition ", access.start_partition, " of tensor ", buffer.name,
            "; tensors in HBM have neither");
    require(use != Use::write || buffer.role != Role::input, Rule::inputs_and_outputs, keyword, "writes input ",
            buffer.name, "; kernels are functions of their inputs");
    for (Axis const& axis : access.axes())
      if (!require(axis.stride >= 0, Rule::access_pattern, keyword, "stride ", axis.stride, "; at least 0 is accepted"))
        return false;
    if (!access.register_offset) return true;
    int const dimension = access.register_offset->dimension;
    return require(dimension >= 0 && dimension < std::ssize(buffer.shape), Rule::access_pattern, keyword,
                   "a register counts dimension ", dimension, " of tensor ", buffer.name, ", which has ",
                   buffer.shape.size());
  }

  /// Requires a result type that PSUM takes: 4 bytes, or bfloat16 on generations that have it. Transposes copy bits and
  /// are exempt.
  void require_psum_type(std::string_view keyword, Access const& access) {
    bool const has_bfloat16 = limits_.has_bfloat16_psum;
    bool const accepted = bytes_of(type(access)) == 4 || (type(access) == ElementType::bfloat16 && has_bfloat16);
    require(memory(access) != Memory::psum || accepted, Rule::generation, keyword, "writes ", name_of(type(access)),
            " to psum tile ", program_.buffer(access).name, "; ", name_of(program_.target), " writes 4-byte types ",
            has_bfloat16 ? "and bfloat16 there, others" : "there, narrower ones", " by nc_transpose only");
  }

  void const* node_;
  std::string_view name_;
};

}  // namespace annulus::nki::validate_detail
