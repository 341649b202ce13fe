#pragma once
// The first pass: every instruction of the text once, its indices bounded by what loops and cores make of them.

#include "annulus/backend/nki/validate/collective_rules.hpp"
#include "annulus/backend/nki/validate/dma_rules.hpp"
#include "annulus/backend/nki/validate/elementwise_rules.hpp"
#include "annulus/backend/nki/validate/index_pattern_rules.hpp"
#include "annulus/backend/nki/validate/reduction_rules.hpp"
#include "annulus/backend/nki/validate/tensor_engine_rules.hpp"

namespace annulus::nki::validate_detail {

class TextPass {
 public:
  TextPass(Program const& program, Hardware const& hardware, FaultList& faults)
      : program_(program), hardware_(hardware), faults_(faults), scope_(program) {}

  void run() {
    check_body(program_.body);
    int const gap = channels_.gap();
    if (gap >= 0 && faults_.empty())
      faults_.add(
          &channels_, "R19", "program", [] { return std::string(); }, "channel_ids", "channel ", gap + 1,
          " is used and ", gap, " is not; channels are counted from 0 without a gap");
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
    NumberRules numbers{site};
    I::fields(instruction, numbers);
    if (!numbers.hold) return;
    constexpr bool by_dma = std::same_as<I, DmaCopy> || std::same_as<I, DmaTranspose>;
    for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
      check_operand(keyword, use, access, by_dma ? StartPartition::any : StartPartition::of_engine, site);
      if constexpr (!std::same_as<I, DmaCopy>)
        site.require(!access.register_offset || on_chip(site.memory(access)), "R17", keyword,
                     "a register in its offset; accepted in dma_copy only");
    });
    if constexpr (requires { instruction.channel; }) channels_.note(instruction.channel);
    check(instruction, site);
  }

  void check_node(Node const& node, Allocate const& made) {
    Site const site = site_of(node, "allocate");
    auto const count = static_cast<int>(program_.buffers.size());
    if (site.require(made.buffer >= 0 && made.buffer < count, "form", "buffer", made.buffer, "; the program has ",
                     count, " buffers"))
      site.require(on_chip(program_.buffer(made.buffer).memory), "form", program_.buffer(made.buffer).name, "is in ",
                   name_of(program_.buffer(made.buffer).memory), "; tiles on chip are allocated, tensors are there");
  }

  void check_node(Node const& node, Section const& section) {
    site_of(node, "section")
        .require(scope_.knows_all_of(section.number), "form", section.name,
                 "is numbered by a variable that no loop around it counts");
    scope_.begin(section);
  }

  void check_node(Node const& node, Loop const& loop) {
    Site const site = site_of(node, "loop");
    auto const variables = static_cast<int>(program_.variables.size());
    bool const known = site.require(loop.variable > core_variable && loop.variable < variables, "form", "variable",
                                    loop.variable, "; accepted: 1 to ", variables - 1) &&
                       site.require(!scope_.knows(loop.variable), "form", "variable",
                                    program_.variables[static_cast<std::size_t>(loop.variable)],
                                    " is counted by a loop around this one");
    bool const counts = site.require(loop.count >= 0, "form", "count", loop.count, "; at least 0");
    if (known && counts) scope_.in_loop(loop, [&] { check_body(loop.body); });
  }

  void check_node(Node const& node, OnCore const& branch) {
    bool const known = site_of(node, "on_core")
                           .require(branch.core >= 0 && branch.core < program_.cores, "form", "core", branch.core,
                                    "; the program runs on ", program_.cores);
    if (known) scope_.on_core(branch.core, [&] { check_body(branch.body); });
  }

  Program const& program_;
  Hardware const& hardware_;
  FaultList& faults_;
  Scope scope_;
  ChannelsUsed channels_;
};

}  // namespace annulus::nki::validate_detail
