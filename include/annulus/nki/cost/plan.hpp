#pragma once
// Cost plan: cost and footprints of each instruction in the text, computed once for the timeline.

#include <unordered_map>
#include <vector>

#include "annulus/nki/cost/cost_of.hpp"
#include "annulus/nki/cost/footprint.hpp"
#include "annulus/nki/program/dangling.hpp"
#include "annulus/nki/program/walk.hpp"

namespace annulus::nki {

/// Footprint of one operand.
struct OperandPlan {
  Access const* access = nullptr;
  bool reads = false, writes = false;
  bool all = false;       ///< touches the whole place; else the runs
  bool can_move = false;  ///< the offset depends on loops
  std::vector<Run> runs;
};

/// Cost and footprints of one instruction.
struct InstructionPlan {
  Instruction const* instruction = nullptr;
  InstructionCost cost;
  bool meeting = false;  ///< a barrier or collective, which the cores of a pair execute together
  std::vector<OperandPlan> operands;
};

/// Refers to the program, which outlives it.
class CostPlan {
 public:
  /// Throws Error if the program names a buffer, variable or register that it does not declare.
  CostPlan(Program const& program, Hardware const& hardware) : pieces_(program.buffers.size(), 0) {
    std::string const missing = dangling(program);
    check<Error>(missing.empty(), "cost of program ", program.name, ": ", missing,
                 "; accepted is a program that passes validation");
    add(program, hardware, program.body);
    for (std::size_t i = 0; i < pieces_.size(); ++i) limit(program.buffers[i], pieces_[i]);
  }

  InstructionPlan const& of(Node const& node) const { return plans_.find(&node)->second; }
  /// Elements per piece in which the uses of a buffer are tracked; 0: only as a whole.
  Index piece(std::size_t buffer) const { return pieces_[buffer]; }

 private:
  /// Above these numbers pieces are merged: finer ones cost memory and time for little accuracy.
  static constexpr Index most_pieces_on_chip = 4096, most_pieces_in_hbm = Index{1} << 16;

  void add(Program const& program, Hardware const& hardware, Body const& body) {
    for (Node const& node : body) {
      if (auto const* instruction = node.as<Instruction>())
        add(program, hardware, node, *instruction);
      else if (auto const* loop = node.as<Loop>())
        add(program, hardware, loop->body);
      else if (auto const* branch = node.as<OnCore>())
        add(program, hardware, branch->body);
    }
  }

  void add(Program const& program, Hardware const& hardware, Node const& node, Instruction const& instruction) {
    InstructionPlan plan{&instruction, cost_of(program, hardware, instruction), is_core_barrier(node), {}};
    for_each_access(instruction, [&](std::string_view, Use use, Access const& access) {
      Buffer const& buffer = program.buffer(access);
      std::vector<Run> runs = runs_of(access, on_chip(buffer.memory));
      bool const all = touches_all(buffer, access, runs);
      Index& piece = pieces_[static_cast<std::size_t>(access.buffer)];
      if (!all) piece = common_divisor(access, runs, piece);
      plan.operands.push_back(
          {&access, use != Use::write, use != Use::read, all, !access.offset.is_constant(), std::move(runs)});
    });
    plans_.emplace(&node, std::move(plan));
  }

  static void limit(Buffer const& buffer, Index& piece) {
    if (piece == 0) return;
    Index const most = on_chip(buffer.memory) ? most_pieces_on_chip : most_pieces_in_hbm;
    Index const pieces = ceil_divide(buffer.elements_per_partition(), piece);
    if (pieces > most) piece *= ceil_divide(pieces, most);
  }

  std::unordered_map<Node const*, InstructionPlan> plans_;
  std::vector<Index> pieces_;
};

}  // namespace annulus::nki
