#pragma once
// Finding of the validator: one place where a tile program breaks a rule.

#include <string>

#include "annulus/core/check.hpp"

namespace annulus::nki {

/// One violated rule. The rules are those of the hardware and of NKI:
///   R1   partitions and start partitions       R2   capacity; operands inside their buffer's tile
///   R3   matmul operands and limits            R4   types of matmul inputs
///   R5   accumulation onto a matmul's result   R6   memories that an engine reaches
///   R7   two inputs in PSUM                    R8   operands of one element per partition
///   R9   range_select                          R11  type of a fill
///   R12  dma_transpose                         R13  nc_transpose
///   R14  reads of elements never written       R15  reduction chains (accumulator registers)
///   R16  inputs and outputs                    R17  access patterns, offsets in HBM
///   R18  features that a generation lacks      R19  collectives and barriers
///   R20  reads after the other core's write    R21  overwrites after the other core's or a collective's use
/// and, by name: form (indices, names, loops), shape (shapes of operands do not match), engine, operator, lifetime.
struct Finding {
  std::string rule;
  std::string instruction;  ///< NKI name; "program", "allocate", "section", "loop" or "on_core" for other nodes
  std::string place;        ///< section, loops and core
  std::string operand;      ///< NKI keyword, or the name of a buffer; empty if the whole instruction is meant
  std::string message;      ///< the value seen; the values accepted
};

/// The finding as one line: rule, instruction, place, operand, message.
inline std::string text_of(Finding const& finding) {
  return message_of("rule ", finding.rule, ", ", finding.instruction, finding.place.empty() ? "" : " (", finding.place,
                    finding.place.empty() ? "" : ")", finding.operand.empty() ? "" : ", ", finding.operand, ": ",
                    finding.message);
}

}  // namespace annulus::nki
