#pragma once
// ReductionChain: what the hidden sums of an engine hold, one per partition: a chain of instructions feeds them.

#include <string>
#include <string_view>

#include "annulus/backend/nki/program/access.hpp"
#include "annulus/backend/nki/program/operators.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki::validate_detail {

/// One use of the hidden sums by an instruction.
struct ChainUse {
  std::string_view instruction;  ///< its kind
  Operator op = Operator::add;
  Index start = 0, partitions = 0;  ///< of dst
  ReduceCommand command = ReduceCommand::idle;
  bool takes = false;     ///< has a reduce_res
  bool clobbers = false;  ///< an idle use that may still change them
};

class ReductionChain {
 public:
  /// `shortest_meant`: a chain fed so often is meant to be read. 1 for ScalarE, where feeding is asked for; 2 for
  /// VectorE, where range_select feeds a chain of one unless told otherwise.
  explicit ReductionChain(int shortest_meant) : shortest_meant_(shortest_meant) {}

  /// Why the use is refused; empty if it is not.
  std::string follow(ChainUse const& use) {
    bool const begins = use.command == ReduceCommand::reset || use.command == ReduceCommand::reset_reduce;
    bool const feeds = use.command == ReduceCommand::reduce || use.command == ReduceCommand::reset_reduce;
    std::string refusal;
    if (begins) {
      if (state_ == State::open && fed_ >= shortest_meant_)
        refusal = message_of(name_of(use.command), " while the sums of ", text(),
                             " were not read; chains must not interleave");
      begin(use);
    } else if (use.command == ReduceCommand::reduce) {
      refusal = refusal_to_go_on(use);
      if (!refusal.empty()) begin(use);  // what follows is not refused for the same reason
    } else if (use.clobbers) {
      state_ = state_ == State::none ? State::none : State::clobbered;
    }
    fed_ += feeds ? 1 : 0;
    if (feeds && state_ == State::taken) state_ = State::open;
    if (use.takes) {
      if (refusal.empty()) refusal = refusal_to_go_on(use);
      if (state_ == State::open) state_ = State::taken;
    }
    return refusal;
  }

 private:
  enum class State { none, open, taken, clobbered };

  void begin(ChainUse const& use) {
    state_ = State::open;
    begun_by_ = use.instruction;
    op_ = use.op;
    start_ = use.start;
    partitions_ = use.partitions;
    fed_ = 0;
  }

  std::string refusal_to_go_on(ChainUse const& use) const {
    if (state_ == State::none)
      return message_of(name_of(use.command), " before any reset; chains begin with reset_reduce");
    if (state_ == State::clobbered)
      return message_of(name_of(use.command),
                        " after an idle use that may have changed the sums; chains begin with reset_reduce");
    // Of instructions that share the sums, each feeds its own: another kind means a chain that has been overwritten.
    if (use.instruction != begun_by_ || use.op != op_ || use.start != start_ || use.partitions != partitions_)
      return message_of(name_of(use.command), " by ", name_of(use.op), " on ", use.partitions, " partitions from ",
                        use.start, "; the sums hold ", text(), ", begun by ", begun_by_);
    return {};
  }
  std::string text() const {
    return message_of("a chain by ", name_of(op_), " on ", partitions_, " partitions from ", start_);
  }

  int shortest_meant_;
  State state_ = State::none;
  std::string_view begun_by_;
  Operator op_ = Operator::add;
  Index start_ = 0, partitions_ = 0, fed_ = 0;
};

}  // namespace annulus::nki::validate_detail
