#pragma once
// First two stages of the validation: the declarations of a program, then every instruction of its text, once, with its
// indices bounded over all loops and cores.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <string>

#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/validate/instruction_rules.hpp"

namespace annulus::nki::validate_detail {

/// First stage of the validation.
class BufferRules {
 public:
  BufferRules(Program const& program, Hardware const& hardware, FaultList& faults)
      : program_(program), limits_(hardware.limits), target_(hardware.target), faults_(faults) {}

  /// Returns whether the declarations are sound; later stages rely on it. A buffer that exceeds capacity is reported,
  /// but does not make them unsound.
  bool check() {
    bool const sound = check_head() && check_shapes();
    if (sound) check_capacity();
    return sound;
  }

 private:
  template <class... Parts>
  bool require(bool holds, Rule rule, std::string_view operand, Parts const&... parts) {
    if (!holds)
      faults_.add(
          &program_, rule, "program", [] { return std::string(); }, operand, parts...);
    return holds;
  }

  bool check_head() {
    bool sound = true;
    auto const need = [&](bool holds, std::string_view operand, auto const&... parts) {
      sound = require(holds, Rule::form, operand, parts...) && sound;
    };
    need(program_.target == target_, "target", "is ", name_of(program_.target), "; the hardware is ", name_of(target_));
    need(program_.cores == 1 || program_.cores == 2, "cores", program_.cores, "; accepted: 1 or 2");
    need(program_.ranks >= 1, "ranks", program_.ranks, "; at least 1");
    need(!program_.variables.empty(), "variables", "none; variable 0 must be the core");
    need(program_.registers >= 0, "registers", program_.registers, "; at least 0");
    return sound;
  }

  bool check_shapes() {
    bool sound = true;
    std::set<std::string_view> names;
    for (Buffer const& buffer : program_.buffers) {
      require(!buffer.name.empty() && names.insert(buffer.name).second, Rule::form, buffer.name,
              "two buffers of this name, or none at all; names are unique");
      bool const extents =
          require(!buffer.shape.empty() && std::ranges::all_of(buffer.shape, [](Index n) { return n >= 1; }),
                  Rule::form, buffer.name, "has shape ", buffer.shape, "; extents of at least 1 are accepted");
      bool const rotation =
          require(buffer.rotation >= 1, Rule::form, buffer.name, "rotation ", buffer.rotation, "; at least 1");
      sound = extents && rotation && check_buffer(buffer) && sound;
    }
    return sound;
  }

  bool check_buffer(Buffer const& buffer) {
    require(buffer.role == Role::internal || buffer.memory == Memory::shared_hbm, Rule::inputs_and_outputs, buffer.name,
            "is in ", name_of(buffer.memory), "; inputs and outputs are in shared_hbm");
    if (!on_chip(buffer.memory))
      return require(buffer.rotation == 1, Rule::form, buffer.name, "rotation ", buffer.rotation,
                     " in HBM; accepted: 1");
    bool const two_axes = require(buffer.shape.size() == 2, Rule::form, buffer.name, "has shape ", buffer.shape,
                                  "; a tile has partitions and elements per partition");
    return two_axes && require(buffer.partitions() <= limits_.partitions, Rule::partitions, buffer.name,
                               buffer.partitions(), " partitions; at most ", limits_.partitions);
  }

  /// Total size of the buffers of one memory, and the first buffer that exceeds its capacity.
  struct Total {
    Index limit;
    Index sum = 0;
    Buffer const* first_beyond = nullptr;

    void add(Buffer const& buffer, Index amount) {
      sum = saturating_sum(sum, amount);
      if (sum > limit && !first_beyond) first_beyond = &buffer;
    }
  };

  void check_capacity() {
    Total sbuf{limits_.sbuf_bytes}, psum{limits_.psum_banks}, hbm{limits_.hbm_bytes};
    for (Buffer const& buffer : program_.buffers) {
      if (buffer.memory == Memory::sbuf)
        sbuf.add(buffer, bytes_per_partition(buffer));
      else if (buffer.memory == Memory::psum)
        psum.add(buffer, psum_banks(buffer, limits_));
      else
        hbm.add(buffer, saturating_product(buffer.bytes(), buffer.memory == Memory::private_hbm ? program_.cores : 1));
    }
    require_capacity(sbuf, "sbuf tiles", "bytes per partition");
    require_capacity(psum, "psum tiles", "banks");
    require_capacity(hbm, "tensors in HBM", "bytes");
  }

  void require_capacity(Total const& total, std::string_view what, std::string_view unit) {
    if (total.first_beyond)
      require(false, Rule::capacity, total.first_beyond->name, "all ", what, " take ", total.sum, ' ', unit,
              "; at most ", total.limit, ", which this one exceeds");
  }

  Program const& program_;
  Limits const& limits_;
  Target target_;
  FaultList& faults_;
};

/// Channels that the collectives of a program use, as bits. Channels are numbered consecutively from 0. Each has its own
/// order of ranks, so the rank whose data a permute brought must be queried on the channel of that permute.
struct ChannelsUsed {
  std::uint32_t permuted = 0;
  std::uint32_t queried = 0;  ///< after at least one hop
  std::uint32_t named = 0;    ///< queried without a hop: this rank, on every channel

  static void note(std::uint32_t& channels, int channel) {
    if (channel >= 0 && channel < 32) channels |= std::uint32_t{1} << channel;
  }
  /// The first channel of a set, -1 if it is empty.
  static int first(std::uint32_t channels) { return channels == 0 ? -1 : std::countr_zero(channels); }

  /// The first unused channel directly below a used one.
  int gap() const {
    std::uint32_t const used = permuted | queried | named;
    return first(~used & (used >> 1));
  }
  int queried_without_permute() const { return first(queried & ~permuted); }
  /// -1 also if the program queries no channel, because it then treats all ranks alike.
  int permuted_without_query() const { return queried == 0 ? -1 : first(permuted & ~queried); }
};

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
    IndexRules indices{site};
    for_each_access(instruction, indices);
    if (!indices.hold) return;
    constexpr bool by_dma = std::same_as<I, DmaCopy> || std::same_as<I, DmaTranspose>;
    for_each_access(instruction, [&](std::string_view keyword, Use use, Access const& access) {
      bool const product = std::same_as<I, MatMul> && use != Use::read;
      check_operand(keyword, use, access,
                    by_dma    ? OperandOf::dma
                    : product ? OperandOf::product
                              : OperandOf::engine,
                    site);
      if constexpr (!std::same_as<I, DmaCopy>)
        site.require(!access.register_offset || on_chip(site.memory(access)), Rule::access_pattern, keyword,
                     "a register in its offset; accepted in dma_copy only");
    });
    if constexpr (std::same_as<I, ProcessingRank>)
      ChannelsUsed::note(scope_.range_of(instruction.iteration_id).high > 0 ? channels_.queried : channels_.named,
                         instruction.channel);
    else if constexpr (requires { instruction.channel; })
      ChannelsUsed::note(channels_.permuted, instruction.channel);
    check(instruction, site);
  }

  void check_channels() {
    auto const refuse = [&](std::string_view operand, auto const&... parts) {
      faults_.add(
          &channels_, Rule::synchronization, "program", [] { return std::string(); }, operand, parts...);
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
    if (site.require(made.buffer >= 0 && made.buffer < count, Rule::form, "buffer", made.buffer, "; the program has ",
                     count, " buffers"))
      site.require(on_chip(program_.buffer(made.buffer).memory), Rule::form, program_.buffer(made.buffer).name,
                   "is in ", name_of(program_.buffer(made.buffer).memory),
                   "; tiles on chip are allocated, tensors are not");
  }

  void check_node(Node const& node, Section const& section) {
    site_of(node, "section")
        .require(scope_.knows_all_of(section.number), Rule::form, section.name,
                 "is numbered by a variable that no loop around it counts");
    scope_.begin(section);
  }

  void check_node(Node const& node, Loop const& loop) {
    Site const site = site_of(node, "loop");
    auto const variables = static_cast<int>(program_.variables.size());
    bool const known = site.require(loop.variable > core_variable && loop.variable < variables, Rule::form, "variable",
                                    loop.variable, "; accepted: 1 to ", variables - 1) &&
                       site.require(!scope_.knows(loop.variable), Rule::form, "variable",
                                    program_.variables[static_cast<std::size_t>(loop.variable)],
                                    " is counted by a loop around this one");
    bool const counts = site.require(loop.count >= 0, Rule::form, "count", loop.count, "; at least 0");
    if (known && counts) scope_.in_loop(loop, [&] { check_body(loop.body); });
  }

  void check_node(Node const& node, OnCore const& branch) {
    bool const known = site_of(node, "on_core")
                           .require(branch.core >= 0 && branch.core < program_.cores, Rule::form, "core", branch.core,
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
