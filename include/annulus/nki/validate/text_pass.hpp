#pragma once
// First two stages of the validation: the declarations of a program, then every instruction of its text, once, with its
// indices bounded over all loops and cores.

#include <algorithm>
#include <bit>
#include <concepts>
#include <limits>
#include <set>
#include <string_view>
#include <variant>
#include <vector>

#include "annulus/nki/validate/instruction_rules.hpp"

namespace annulus::nki::validate_detail {

/// First stage of the validation.
class Declarations : OperandRules {
 public:
  Declarations(Program const& program, Hardware const& hardware, FaultList& faults)
      : OperandRules(program, hardware, faults), target_(hardware.target) {}

  /// Returns whether the declarations are sound; later stages rely on it. A buffer that exceeds capacity is reported,
  /// but does not make them unsound.
  bool check() {
    bool const sound = check_head() && check_shapes();
    if (sound) check_capacity();
    return sound;
  }

 private:
  bool check_head() {
    bool sound = true;
    auto const need = [&](bool holds, std::string_view operand, auto const&... parts) {
      sound = require(holds, Rule::form, operand, parts...) && sound;
    };
    need(program_.target == target_, "target", "is ", name_of(program_.target), "; the hardware is ", name_of(target_));
    need(program_.cores == 1 || program_.cores == 2, "cores", program_.cores, "; accepted: 1 or 2");
    need(program_.ranks >= 1, "ranks", program_.ranks, "; at least 1");
    need(!program_.variables.empty(), "variables", "none; variable 0 must be the core");
    for (RegisterValues const& values : program_.registers)
      need(values.count >= 1 && values.step >= 1, "registers", values.count, " values at distances of ", values.step,
           "; at least 1 each");
    return sound;
  }

  bool check_shapes() {
    bool sound = true;
    std::set<std::string_view> names;
    for (Buffer const& buffer : program_.buffers) {
      auto const need = [&](bool holds, Rule rule, auto const&... parts) {
        bool const held = require(holds, rule, buffer.name, parts...);
        sound = sound && held;
        return held;
      };
      require(!buffer.name.empty() && names.insert(buffer.name).second, Rule::form, buffer.name,
              "two buffers of this name, or none at all; names are unique");
      bool const extents =
          need(!buffer.shape.empty() && std::ranges::all_of(buffer.shape, [](Index n) { return n >= 1; }), Rule::form,
               "has shape ", buffer.shape, "; extents of at least 1 are accepted");
      bool const rotates = need(buffer.rotation >= 1, Rule::form, "rotation ", buffer.rotation, "; at least 1");
      if (!extents || !rotates) continue;
      require(buffer.role == Role::internal || buffer.memory == Memory::shared_hbm, Rule::inputs_and_outputs,
              buffer.name, "is in ", name_of(buffer.memory), "; inputs and outputs are in shared_hbm");
      if (!on_chip(buffer.memory))
        need(buffer.rotation == 1, Rule::form, "rotation ", buffer.rotation, " in HBM; accepted: 1");
      else if (need(buffer.shape.size() == 2, Rule::form, "has shape ", buffer.shape,
                    "; a tile has partitions and elements per partition"))
        need(buffer.partitions() <= limits_.partitions, Rule::partitions, buffer.partitions(), " partitions; at most ",
             limits_.partitions);
    }
    return sound;
  }

  /// Reports, for each memory, the first buffer that exceeds its capacity.
  void check_capacity() {
    check_total(limits_.sbuf_bytes, "sbuf tiles", "bytes per partition",
                [](Buffer const& buffer) { return buffer.memory == Memory::sbuf ? bytes_per_partition(buffer) : 0; });
    check_total(limits_.psum_banks, "psum tiles", "banks",
                [&](Buffer const& buffer) { return buffer.memory == Memory::psum ? psum_banks(buffer, limits_) : 0; });
    check_total(limits_.hbm_bytes, "tensors in HBM", "bytes", [&](Buffer const& buffer) {
      if (on_chip(buffer.memory)) return Index{0};
      return detail::saturating_product(buffer.bytes(), buffer.memory == Memory::private_hbm ? program_.cores : 1);
    });
  }

  template <class AmountOf>
  void check_total(Index limit, std::string_view what, std::string_view unit, AmountOf&& amount_of) {
    Index total = 0;
    Buffer const* first_beyond = nullptr;
    for (Buffer const& buffer : program_.buffers) {
      total = detail::saturating_sum(total, amount_of(buffer));
      if (total > limit && !first_beyond) first_beyond = &buffer;
    }
    if (first_beyond)
      require(false, Rule::capacity, first_beyond->name, "all ", what, " take ", total, ' ', unit, "; at most ", limit,
              ", which this one exceeds");
  }

  Target target_;
};

/// Second stage of the validation. Relies on declarations that were found sound.
class TextPass : InstructionRules {
 public:
  TextPass(Program const& program, Hardware const& hardware, FaultList& faults)
      : InstructionRules(program, hardware, faults), used_(program.buffers.size()), sent_(program.buffers.size()) {}

  void run() {
    check_body(program_.body);
    if (faults_.empty()) check_sent_tensors();
  }

 private:
  void check_body(Body const& body) {
    for (Node const& node : body) {
      if (faults_.full()) return;
      std::visit([&](auto const& content) { check_node(node, content); }, node.content);
    }
  }

  void check_node(Node const& node, Instruction const& instruction) {
    begin(&node, name_of(instruction));
    std::visit([&](auto const& typed) { check_instruction(typed); }, instruction);
  }

  template <class I>
  void check_instruction(I const& instruction) {
    if (!check_references(instruction)) return;
    for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
      note_use(access, instruction.engine == Engine::collective);
      check_operand(keyword, use, access, instruction.engine);
      if constexpr (!std::same_as<I, TensorScalar> && !std::same_as<I, RegisterLoad>)
        require_type(type(access) != ElementType::int32, Rule::form, keyword, access,
                     "accepted: in tensor_scalar and register_load only");
      if constexpr (!std::same_as<I, DmaCopy>)
        require(!access.register_offset || on_chip(memory(access)), Rule::access_pattern, keyword,
                "a register in its offset; accepted in dma_copy only");
    });
    if constexpr (requires { instruction.register_number; }) require_register("", instruction.register_number);
    check(instruction);
  }

  void note_use(Access const& access, bool collective) {
    auto& cores = collective ? sent_ : used_;
    nth(cores, access.buffer) |= collective || scope_.core() < 0 ? 3u : 1u << scope_.core();
  }

  /// Both cores of a pair allocate every tensor that a collective touches. A compiler of one core that meets the tensor
  /// in collectives only has been seen to fail (NCC_ILLC059), so both cores use it otherwise too, or neither.
  void check_sent_tensors() {
    scope_ = Scope(program_);
    begin(&program_, "program");
    for (std::size_t i = 0; i < program_.buffers.size(); ++i)
      require(program_.cores == 1 || sent_[i] == 0 || used_[i] == 0 || used_[i] == 3, Rule::synchronization,
              program_.buffers[i].name, "a collective touches it, and of the two cores only ",
              std::countr_zero(used_[i]), " uses it otherwise; accepted: both, or neither");
  }

  void check_node(Node const& node, Allocate const& made) {
    begin(&node, "allocate");
    if (!require_buffer("buffer", made.buffer, "")) return;
    Buffer const& buffer = program_.buffer(made.buffer);
    require(on_chip(buffer.memory), Rule::form, buffer.name, "is in ", name_of(buffer.memory),
            "; tiles on chip are allocated, tensors are not");
  }

  void check_node(Node const& node, Section const& section) {
    begin(&node, "section");
    if (require(scope_.knows_all_of(section.number), Rule::form, section.name,
                "is numbered by a variable that no loop around it counts")) {
      // A bound that would overflow is the lowest or largest Index.
      ValueRange const numbers = scope_.range_of(section.number);
      require(numbers.low > std::numeric_limits<Index>::min() && numbers.high < detail::largest_index, Rule::form,
              section.name, "is numbered ", numbers.low, "..", numbers.high, "; accepted: numbers of 64 bits");
    }
    scope_.begin(section);
  }

  void check_node(Node const& node, Loop const& loop) {
    begin(&node, "loop");
    auto const variables = static_cast<int>(program_.variables.size());
    bool const known = require(loop.variable > core_variable && loop.variable < variables, Rule::form, "variable",
                               loop.variable, "; accepted: 1 to ", variables - 1) &&
                       require(!scope_.knows(loop.variable), Rule::form, "variable",
                               nth(program_.variables, loop.variable), " is counted by a loop around this one");
    bool const counts = require(loop.count >= 0, Rule::form, "count", loop.count, "; at least 0");
    if (known && counts) scope_.in_loop(loop, [&] { check_body(loop.body); });
  }

  void check_node(Node const& node, OnCore const& branch) {
    begin(&node, "on_core");
    if (require(branch.core >= 0 && branch.core < program_.cores, Rule::form, "core", branch.core,
                "; the program runs on ", program_.cores))
      scope_.on_core(branch.core, [&] { check_body(branch.body); });
  }

  std::vector<unsigned> used_, sent_;  ///< by buffer: cores that use it outside and inside of collectives, as bits
};

}  // namespace annulus::nki::validate_detail
