#pragma once
// Execution of a program by one core, without data: its nodes in order, and counts of instructions, bytes and
// multiply-adds.

#include <array>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Yields the Instructions, Allocates and Sections that one core executes, one at a time, so that the caller can pause
/// where cores synchronize. The program must outlive the walk.
class Walk {
 public:
  /// At the first node of a core.
  Walk(Program const& program, int core)
      : values_(program.variables.size(), 0), tiles_made_(program.buffers.size(), 0), program_(&program) {
    values_[core_variable] = core;
    enter(program.body, nullptr);
  }

  /// The next node, or null at the end. An Allocate is counted before it is returned.
  Node const* next() {
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (frame.position == frame.body->size()) {
        if (frame.loop && ++value_of(*frame.loop) < frame.loop->count)
          frame.position = 0;
        else
          frames_.pop_back();
        continue;
      }
      Node const& node = (*frame.body)[frame.position++];
      if (auto const* loop = node.as<Loop>()) {
        if (loop->count > 0) {
          value_of(*loop) = 0;
          enter(loop->body, loop);
        }
      } else if (auto const* branch = node.as<OnCore>()) {
        if (branch->core == core()) enter(branch->body, nullptr);
      } else {
        if (auto const* made = node.as<Allocate>()) ++nth(tiles_made_, made->buffer);
        if (auto const* section = node.as<Section>()) section_ = section, section_number_ = at(section->number);
        return &node;
      }
    }
    return nullptr;
  }

  int core() const { return static_cast<int>(values_[core_variable]); }  ///< the one that is walked
  Index at(Affine const& affine) const { return affine.at(values_); }    ///< value of an index here
  Section const* section() const { return section_; }                    ///< that began last; null: none
  Index section_number() const { return section_number_; }               ///< its number
  /// The body that holds the node that next() returned last, and its place there.
  std::pair<Body const*, std::size_t> position() const { return {frames_.back().body, frames_.back().position - 1}; }

  /// Text such as: section "step" 3, key_tile_2 = 5, core 1
  std::string place() const {
    std::vector<std::string> parts;
    if (section_) parts.push_back(concat("section \"", section_->name, "\" ", section_number_));
    for (Frame const& frame : frames_)
      if (frame.loop)
        parts.push_back(
            concat(nth(program_->variables, frame.loop->variable), " = ", nth(values_, frame.loop->variable)));
    if (program_->cores == 2) parts.push_back(concat("core ", core()));
    return joined(parts);
  }

  /// Place of the named tile among the `rotation` places of an on-chip buffer; -1 if that tile has not been made yet or
  /// a newer one reuses its place. 0 in HBM.
  int place_of(Access const& access) const { return place_of(access.buffer, access.age); }
  /// The same of the tile of buffer `number` that is `age` tiles older than its newest.
  int place_of(int number, int age) const {
    Buffer const& buffer = program_->buffer(number);
    if (!on_chip(buffer.memory)) return 0;
    Index const made = nth(tiles_made_, number);
    if (age >= made || age >= buffer.rotation) return -1;
    return static_cast<int>((made - 1 - age) % buffer.rotation);
  }

 private:
  struct Frame {
    Body const* body;
    Loop const* loop;
    std::size_t position;
  };

  void enter(Body const& body, Loop const* loop) { frames_.push_back({&body, loop, 0}); }
  Index& value_of(Loop const& loop) { return nth(values_, loop.variable); }

  std::vector<Index> values_;
  std::vector<Index> tiles_made_;
  std::vector<Frame> frames_;
  Program const* program_;
  Section const* section_ = nullptr;
  Index section_number_ = 0;
};

/// True if the cores of a pair wait for each other at this node: at barriers and collectives.
inline bool is_core_barrier(Node const& node) {
  auto const* instruction = node.as<Instruction>();
  return instruction &&
         (std::holds_alternative<CoreBarrier>(*instruction) || engine_of(*instruction) == Engine::collective);
}

/// Counts of one core, or the sum over both.
struct Counts {
  static constexpr std::size_t kinds = std::variant_size_v<Instruction>;  ///< of instructions

  std::array<Index, kinds> executed{};  ///< by index of the kind in Instruction
  Index hbm_read = 0;                   ///< bytes by DMA; those of collectives are in `permuted`
  Index hbm_written = 0;                ///< bytes by DMA
  Index permuted = 0;       ///< bytes sent to the successor; counted on core 0, as both cores of a pair send together
  Index multiply_adds = 0;  ///< K * M * N of the matmuls; a transpose has none

  bool operator==(Counts const&) const = default;

  /// Executions of instruction I.
  template <class I>
  Index of() const {
    return executed[Instruction(std::in_place_type<I>).index()];
  }
  /// Executions of all instructions.
  Index instructions() const { return std::accumulate(executed.begin(), executed.end(), Index{0}); }

  /// Adds executions of an instruction by a core.
  void add(Program const& program, int core, Instruction const& instruction, Index times) {
    executed[instruction.index()] += times;
    if (std::holds_alternative<CoreBarrier>(instruction)) return;
    bool const permutes = engine_of(instruction) == Engine::collective;
    for_each_access(instruction, [&](std::string_view, Use use, Access const& access) {
      Buffer const& buffer = program.buffer(access);
      Index const bytes = times * access.size() * bytes_of(buffer.type);
      if (permutes) {
        if (core == 0 && use == Use::write) permuted += bytes;
        return;
      }
      if (on_chip(buffer.memory)) return;
      if (use != Use::write) hbm_read += bytes;
      if (use != Use::read) hbm_written += bytes;
    });
    if (auto const* product = std::get_if<MatMul>(&instruction))
      multiply_adds += times * product->stationary.size() * product->moving.elements();
  }
};

/// Counts of one core, added to `counts`.
inline Counts count(Program const& program, int core, Counts counts = {}) {
  for_each_executed(program.body, core, [&](Node const& node, Index times) {
    if (auto const* instruction = node.as<Instruction>()) counts.add(program, core, *instruction, times);
  });
  return counts;
}

/// Counts of all cores of one rank.
inline Counts count(Program const& program) {
  Counts counts;
  for (int core = 0; core < program.cores; ++core) counts = count(program, core, counts);
  return counts;
}

}  // namespace annulus::nki
