#pragma once
// Text pass of the validator: checks every instruction once, with its indices bounded over all loops and cores.

#include "annulus/nki/validate/collective_rules.hpp"
#include "annulus/nki/validate/dma_rules.hpp"
#include "annulus/nki/validate/elementwise_rules.hpp"
#include "annulus/nki/validate/index_pattern_rules.hpp"
#include "annulus/nki/validate/reduction_rules.hpp"
#include "annulus/nki/validate/tensor_engine_rules.hpp"

namespace annulus::nki::validate_detail {

/// Second stage of the validation. Relies on declarations that BufferRules found sound.
class TextPass {
 public:
  TextPass(Program const& program, Hardware const& hardware, FaultList& faults)
      : program_(program), hardware_(hardware), faults_(faults), scope_(program) {}

  void run() {
    check_body(program_.body);
    if (faults_.empty()) check_channels();
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
    IndexRules numbers{site};
    I::fields(instruction, numbers);
    if (!numbers.hold) return;
    constexpr bool by_dma = std::same_as<I, DmaCopy> || std::same_as<I, DmaTranspose>;
    for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
      bool const product = std::same_as<I, MatMul> && use != Use::read;
      check_operand(keyword, use, access,
                    by_dma    ? OperandOf::dma
                    : product ? OperandOf::product
                              : OperandOf::engine,
                    site);
      if constexpr (!std::same_as<I, DmaCopy>)
        site.require(!access.register_offset || on_chip(site.memory(access)), "R17", keyword,
                     "a register in its offset; accepted in dma_copy only");
    });
    if constexpr (std::same_as<I, ProcessingRank>)
      channels_.note_rank(instruction.channel, scope_.range_of(instruction.iteration_id).high > 0);
    else if constexpr (requires { instruction.channel; })
      channels_.note_permute(instruction.channel);
    check(instruction, site);
  }

  void check_channels() {
    auto const refuse = [&](std::string_view operand, auto const&... parts) {
      faults_.add(
          &channels_, "R19", "program", [] { return std::string(); }, operand, parts...);
    };
    if (int const gap = channels_.gap(); gap >= 0)
      refuse("channel_ids", "channel ", gap + 1, " is used and ", gap,
             " is not; channels are counted from 0 without a gap");
    if (int const idle = channels_.queried_without_permute(); idle >= 0)
      refuse("channel_id", "queries the received rank on channel ", idle,
             ", on which nothing is permuted; accepted: the channel of the permute, because each channel has its own "
             "order of ranks");
    if (int const unqueried = channels_.permuted_without_query(); unqueried >= 0)
      refuse("channel_ids", "permutes on channel ", unqueried,
             ", but queries the received rank on other channels only; each channel has its own order of ranks, so "
             "data used together must be permuted on the channel that is queried");
  }

  void check_node(Node const& node, Allocate const& made) {
    Site const site = site_of(node, "allocate");
    auto const count = static_cast<int>(program_.buffers.size());
    if (site.require(made.buffer >= 0 && made.buffer < count, "form", "buffer", made.buffer, "; the program has ",
                     count, " buffers"))
      site.require(on_chip(program_.buffer(made.buffer).memory), "form", program_.buffer(made.buffer).name, "is in ",
                   name_of(program_.buffer(made.buffer).memory), "; tiles on chip are allocated, tensors are not");
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
