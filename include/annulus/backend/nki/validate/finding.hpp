#pragma once
// Finding: one place where a tile program breaks a rule.

#include <string>

#include "annulus/core/check.hpp"

namespace annulus::nki {

/// Rules are those of the hardware and of NKI:
///   R1   partitions and start partitions       R2   capacity; operands inside their tile
///   R3   matmul operands and limits            R4   types of matmul inputs
///   R5   accumulation onto what a matmul wrote R6   memories that an engine reaches
///   R7   two inputs in PSUM                    R8   operands of one element per partition
///   R9   range_select                          R11  type of a fill
///   R12  dma_transpose                         R13  nc_transpose
///   R14  reads of what was never written       R15  chains of hidden sums
///   R16  inputs and outputs                    R17  access patterns, offsets in HBM
///   R18  what a generation lacks               R19  collectives and barriers
///   R20  what the other core wrote             R21  what the other core or a collective may still read
/// and, as words: form (numbers, names, loops), shape (operands do not fit each other), engine, operator, lifetime.
struct Finding {
  std::string rule;
  std::string instruction;  ///< NKI name; "program" or "allocate" where it is none
  std::string place;        ///< section, loops and core
  std::string operand;      ///< NKI keyword, or the name of a buffer; empty where it is the whole instruction
  std::string message;      ///< what was seen; what is accepted
};

inline std::string text_of(Finding const& finding) {
  return message_of("rule ", finding.rule, ", ", finding.instruction, finding.place.empty() ? "" : " (", finding.place,
                    finding.place.empty() ? "" : ")", finding.operand.empty() ? "" : ", ", finding.operand, ": ",
                    finding.message);
}

}  // namespace annulus::nki
