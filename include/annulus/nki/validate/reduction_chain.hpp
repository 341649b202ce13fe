#pragma once
// State of the accumulator registers of an engine, one per partition, which a chain of instructions accumulates into.

#include <string>
#include <string_view>

#include "annulus/nki/program/access.hpp"
#include "annulus/nki/program/operators.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki::validate_detail {

/// One use of the accumulator registers by an instruction.
struct ChainUse {
  std::string_view instruction;  ///< NKI name
  Operator op = Operator::add;
  Index start = 0, partitions = 0;  ///< of dst
  ReduceCommand command = ReduceCommand::idle;
  bool takes = false;     ///< has a reduce_res, which reads the registers
  bool clobbers = false;  ///< an idle use that may still change the registers
};

/// Checks that chains start with a reset, continue unchanged, and do not interleave (R15).
class ReductionChain {
 public:
  /// `min_length`: a chain of at least this many accumulations must be read before the next one begins. 1 for ScalarE,
  /// which accumulates on request only; 2 for VectorE, where range_select by default runs a chain of length 1.
  explicit ReductionChain(int min_length) : min_length_(min_length) {}

  /// Reason why the use is refused; empty if it is accepted.
  std::string follow(ChainUse const& use) {
    bool const begins = use.command == ReduceCommand::reset || use.command == ReduceCommand::reset_reduce;
    bool const accumulates = use.command == ReduceCommand::reduce || use.command == ReduceCommand::reset_reduce;
    std::string refusal;
    if (begins) {
      if (state_ == State::open && accumulated_ >= min_length_)
        refusal = message_of(name_of(use.command), " while the sums of ", text(),
                             " were not read; chains must not interleave");
      begin(use);
    } else if (use.command == ReduceCommand::reduce) {
      refusal = refusal_to_continue(use);
      if (!refusal.empty()) begin(use);  // so that later instructions are not refused for the same reason
    } else if (use.clobbers) {
      state_ = state_ == State::none ? State::none : State::clobbered;
    }
    accumulated_ += accumulates ? 1 : 0;
    if (accumulates && state_ == State::taken) state_ = State::open;
    if (use.takes) {
      if (refusal.empty()) refusal = refusal_to_continue(use);
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
    accumulated_ = 0;
  }

  std::string refusal_to_continue(ChainUse const& use) const {
    if (state_ == State::none)
      return message_of(name_of(use.command), " before any reset; chains begin with reset_reduce");
    if (state_ == State::clobbered)
      return message_of(name_of(use.command),
                        " after an idle use that may have changed the sums; chains begin with reset_reduce");
    // Instructions of different kinds share the registers but not a chain: another kind has overwritten this chain.
    if (use.instruction != begun_by_ || use.op != op_ || use.start != start_ || use.partitions != partitions_)
      return message_of(name_of(use.command), " by ", name_of(use.op), " on ", use.partitions, " partitions from ",
                        use.start, "; the sums hold ", text(), ", begun by ", begun_by_);
    return {};
  }
  std::string text() const {
    return message_of("a chain by ", name_of(op_), " on ", partitions_, " partitions from ", start_);
  }

  int min_length_;
  State state_ = State::none;
  std::string_view begun_by_;
  Operator op_ = Operator::add;
  Index start_ = 0, partitions_ = 0, accumulated_ = 0;
};

}  // namespace annulus::nki::validate_detail
