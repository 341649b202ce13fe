#pragma once
// First two stages of the validation: the declarations of a program, then every instruction of its text, once, with its
// indices bounded over all loops and cores.

#include <bit>
#include <set>

#include "annulus/nki/validate/instruction_rules.hpp"

namespace annulus::nki::validate_detail {

inline bool check_head(Target target, Site const& site) {
  Program const& program = site.program;
  bool sound = true;
  auto const need = [&](bool holds, std::string_view operand, auto const&... parts) {
    sound = site.require(holds, Rule::form, operand, parts...) && sound;
  };
  need(program.target == target, "target", "is ", name_of(program.target), "; the hardware is ", name_of(target));
  need(program.cores == 1 || program.cores == 2, "cores", program.cores, "; accepted: 1 or 2");
  need(program.ranks >= 1, "ranks", program.ranks, "; at least 1");
  need(!program.variables.empty(), "variables", "none; variable 0 must be the core");
  for (RegisterValues const& values : program.registers)
    need(values.count >= 1 && values.step >= 1, "registers", values.count, " values at distances of ", values.step,
         "; at least 1 each");
  return sound;
}

inline bool check_shapes(Site const& site) {
  bool sound = true;
  std::set<std::string_view> names;
  for (Buffer const& buffer : site.program.buffers) {
    auto const require = [&](bool holds, Rule rule, auto const&... parts) {
      return site.require(holds, rule, buffer.name, parts...);
    };
    require(!buffer.name.empty() && names.insert(buffer.name).second, Rule::form,
            "two buffers of this name, or none at all; names are unique");
    bool const extents =
        require(!buffer.shape.empty() && std::ranges::all_of(buffer.shape, [](Index n) { return n >= 1; }), Rule::form,
                "has shape ", buffer.shape, "; extents of at least 1 are accepted");
    bool const rotates = require(buffer.rotation >= 1, Rule::form, "rotation ", buffer.rotation, "; at least 1");
    sound = sound && extents && rotates;
    if (!extents || !rotates) continue;
    require(buffer.role == Role::internal || buffer.memory == Memory::shared_hbm, Rule::inputs_and_outputs, "is in ",
            name_of(buffer.memory), "; inputs and outputs are in shared_hbm");
    if (on_chip(buffer.memory))
      sound = require(buffer.shape.size() == 2, Rule::form, "has shape ", buffer.shape,
                      "; a tile has partitions and elements per partition") &&
              require(buffer.partitions() <= site.limits.partitions, Rule::partitions, buffer.partitions(),
                      " partitions; at most ", site.limits.partitions) &&
              sound;
    else
      sound = require(buffer.rotation == 1, Rule::form, "rotation ", buffer.rotation, " in HBM; accepted: 1") && sound;
  }
  return sound;
}

/// Reports, for each memory, the first buffer that exceeds its capacity.
inline void check_capacity(Site const& site) {
  auto const check_total = [&](Index limit, std::string_view what, std::string_view unit, auto&& amount_of) {
    Index total = 0;
    Buffer const* first_beyond = nullptr;
    for (Buffer const& buffer : site.program.buffers) {
      total = detail::saturating_sum(total, amount_of(buffer));
      if (total > limit && !first_beyond) first_beyond = &buffer;
    }
    if (first_beyond)
      site.require(false, Rule::capacity, first_beyond->name, "all ", what, " take ", total, ' ', unit, "; at most ",
                   limit, ", which this one exceeds");
  };
  check_total(site.limits.sbuf_bytes, "sbuf tiles", "bytes per partition",
              [](Buffer const& buffer) { return buffer.memory == Memory::sbuf ? bytes_per_partition(buffer) : 0; });
  check_total(site.limits.psum_banks, "psum tiles", "banks", [&](Buffer const& buffer) {
    return buffer.memory == Memory::psum ? psum_banks(buffer, site.limits) : 0;
  });
  check_total(site.limits.hbm_bytes, "tensors in HBM", "bytes", [&](Buffer const& buffer) {
    if (on_chip(buffer.memory)) return Index{0};
    return detail::saturating_product(buffer.bytes(), buffer.memory == Memory::private_hbm ? site.program.cores : 1);
  });
}

/// First stage of the validation. Returns whether the declarations are sound; later stages rely on it. A buffer that
/// exceeds capacity is reported, but does not make them unsound.
inline bool check_declarations(Program const& program, Hardware const& hardware, FaultList& faults) {
  Scope const scope(program);
  Site const site(program, hardware, scope, faults, &program, "program");
  bool const sound = check_head(hardware.target, site) && check_shapes(site);
  if (sound) check_capacity(site);
  return sound;
}

/// Second stage of the validation. Relies on declarations that check_declarations found sound.
class TextPass {
 public:
  TextPass(Program const& program, Hardware const& hardware, FaultList& faults)
      : program_(program),
        hardware_(hardware),
        faults_(faults),
        scope_(program),
        used_(program.buffers.size()),
        sent_(program.buffers.size()) {}

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

  Site site_of(Node const& node, std::string_view name) const {
    return {program_, hardware_, scope_, faults_, &node, name};
  }

  void check_node(Node const& node, Instruction const& instruction) {
    std::visit([&](auto const& typed) { check_instruction(node, typed); }, instruction);
  }

  template <class I>
  void check_instruction(Node const& node, I const& instruction) {
    Site const site = site_of(node, I::name);
    IndexRules indices{site};
    for_each_access(instruction, indices);
    if (!indices.hold) return;
    constexpr bool by_dma = std::same_as<I, DmaCopy> || std::same_as<I, DmaTranspose>;
    constexpr OperandOf whose = by_dma ? OperandOf::dma : OperandOf::engine;
    for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
      note_use(access, instruction.engine == Engine::collective);
      bool const product = std::same_as<I, MatMul> && use != Use::read;
      check_operand(keyword, use, access, product ? OperandOf::product : whose, site);
      if constexpr (!std::same_as<I, TensorScalar> && !std::same_as<I, RegisterLoad>)
        require_type(site.type(access) != ElementType::int32, Rule::form, keyword, access, site,
                     "accepted: in tensor_scalar and register_load only");
      if constexpr (!std::same_as<I, DmaCopy>)
        site.require(!access.register_offset || on_chip(site.memory(access)), Rule::access_pattern, keyword,
                     "a register in its offset; accepted in dma_copy only");
    });
    check(instruction, site);
  }

  void note_use(Access const& access, bool collective) {
    auto& cores = collective ? sent_ : used_;
    nth(cores, access.buffer) |= collective || core_ < 0 ? 3u : 1u << core_;
  }

  /// Both cores of a pair allocate every tensor that a collective touches. A compiler of one core that meets the tensor
  /// in collectives only has been seen to fail (NCC_ILLC059), so both cores use it otherwise too, or neither.
  void check_sent_tensors() {
    Scope const scope(program_);
    Site const site(program_, hardware_, scope, faults_, &program_, "program");
    for (std::size_t i = 0; i < program_.buffers.size(); ++i)
      site.require(program_.cores == 1 || sent_[i] == 0 || used_[i] == 0 || used_[i] == 3, Rule::synchronization,
                   program_.buffers[i].name, "a collective touches it, and of the two cores only ",
                   std::countr_zero(used_[i]), " uses it otherwise; accepted: both, or neither");
  }

  void check_node(Node const& node, Allocate const& made) {
    Site const site = site_of(node, "allocate");
    auto const count = static_cast<int>(program_.buffers.size());
    if (site.require(made.buffer >= 0 && made.buffer < count, Rule::form, "buffer", made.buffer, "; the program has ",
                     count, " buffers"))
      site.require(on_chip(program_.buffer(made.buffer).memory), Rule::form, program_.buffer(made.buffer).name,
                   "is in ", name_of(program_.buffer(made.buffer).memory),
                   "; tiles on chip are allocated, tensors are not");
  }

  void check_node(Node const& node, Section const& section) {
    Site const site = site_of(node, "section");
    if (site.require(scope_.knows_all_of(section.number), Rule::form, section.name,
                     "is numbered by a variable that no loop around it counts")) {
      // A bound that would overflow is the lowest or largest Index.
      ValueRange const numbers = scope_.range_of(section.number);
      site.require(numbers.low > std::numeric_limits<Index>::min() && numbers.high < detail::largest_index, Rule::form,
                   section.name, "is numbered ", numbers.low, "..", numbers.high, "; accepted: numbers of 64 bits");
    }
    scope_.begin(section);
  }

  void check_node(Node const& node, Loop const& loop) {
    Site const site = site_of(node, "loop");
    auto const variables = static_cast<int>(program_.variables.size());
    bool const known = site.require(loop.variable > core_variable && loop.variable < variables, Rule::form, "variable",
                                    loop.variable, "; accepted: 1 to ", variables - 1) &&
                       site.require(!scope_.knows(loop.variable), Rule::form, "variable",
                                    nth(program_.variables, loop.variable), " is counted by a loop around this one");
    bool const counts = site.require(loop.count >= 0, Rule::form, "count", loop.count, "; at least 0");
    if (known && counts) scope_.in_loop(loop, [&] { check_body(loop.body); });
  }

  void check_node(Node const& node, OnCore const& branch) {
    bool const known = site_of(node, "on_core")
                           .require(branch.core >= 0 && branch.core < program_.cores, Rule::form, "core", branch.core,
                                    "; the program runs on ", program_.cores);
    if (!known) return;
    core_ = branch.core;
    scope_.on_core(branch.core, [&] { check_body(branch.body); });
    core_ = -1;
  }

  Program const& program_;
  Hardware const& hardware_;
  FaultList& faults_;
  Scope scope_;
  int core_ = -1;                      ///< of the branch of one core that is being checked; -1: none
  std::vector<unsigned> used_, sent_;  ///< by buffer: cores that use it outside and inside of collectives, as bits
};

}  // namespace annulus::nki::validate_detail
