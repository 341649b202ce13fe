#pragma once
// Rules of the validator, what it assumes, and its findings: the places where a tile program breaks a rule.

#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "annulus/core/error.hpp"

namespace annulus::nki {

/// Rules of the hardware and of NKI, and rules on the form of a program.
enum class Rule {
  partitions,          ///< R1: partitions and start partitions
  capacity,            ///< R2: capacity; operands inside their buffer's tile
  matmul,              ///< R3: matmul operands and limits
  matmul_types,        ///< R4: types of matmul inputs
  accumulation,        ///< R5: accumulation onto a matmul's result, and how many at once
  reach,               ///< R6: memories that an engine reaches
  psum_inputs,         ///< R7: two inputs in PSUM
  columns,             ///< R8: operands of one element per partition
  range_select,        ///< R9: range_select
  dma_transpose,       ///< R12: dma_transpose
  nc_transpose,        ///< R13: nc_transpose
  definedness,         ///< R14: reads of elements never written
  reduction_chain,     ///< R15: reduction chains (accumulator registers)
  inputs_and_outputs,  ///< R16: inputs and outputs
  access_pattern,      ///< R17: access patterns, offsets in HBM
  generation,          ///< R18: features that a generation lacks
  synchronization,     ///< R19: collectives and barriers
  read_after_write,    ///< R20: reads after the other core's write
  overwrite,           ///< R21: overwrites after the other core's or a collective's use
  form,                ///< indices, names, loops
  shape,               ///< shapes of operands that do not match
  engine,              ///< engines that execute an instruction
  operators,           ///< operators that an instruction takes
  lifetime,            ///< tiles that are not made yet or no longer kept
};

/// Name of a rule in findings.
constexpr std::string_view name_of(Rule rule) {
  constexpr std::string_view names[] = {"R1",  "R2",  "R3",  "R4",   "R5",    "R6",     "R7",       "R8",
                                        "R9",  "R12", "R13", "R14",  "R15",   "R16",    "R17",      "R18",
                                        "R19", "R20", "R21", "form", "shape", "engine", "operator", "lifetime"};
  static_assert(std::size(names) == static_cast<std::size_t>(Rule::lifetime) + 1);
  return names[static_cast<std::size_t>(rule)];
}

/// Assumptions about undocumented behaviour; the defaults are the conservative ones.
struct Assumptions {
  /// True if a collective waits until both cores of a pair have finished with the tensor it overwrites, and both wait
  /// until it has sent a tensor before they overwrite it. If false, each case requires a barrier.
  bool collectives_wait_for_both_cores = false;
  /// True if a bank of PSUM holds at most one open accumulation group; no page says how many it may hold.
  bool one_accumulation_per_bank = false;
};

/// One violated rule.
struct Finding {
  Rule rule = Rule::form;   ///< that is broken
  std::string instruction;  ///< NKI name; "program", "allocate", "section", "loop" or "on_core" for other nodes
  std::string place;        ///< section, loops and core
  std::string operand;      ///< NKI keyword, or the name of a buffer; empty if the whole instruction is meant
  std::string message;      ///< the value seen; the values accepted
};

/// The finding as one line: rule, instruction, place, operand, message.
inline std::string text_of(Finding const& finding) {
  return detail::message_of("rule ", name_of(finding.rule), ", ", finding.instruction,
                            finding.place.empty() ? "" : " (", finding.place, finding.place.empty() ? "" : ")",
                            finding.operand.empty() ? "" : ", ", finding.operand, ": ", finding.message);
}

namespace validate_detail {

/// The findings of all stages, limited to a maximum number and without duplicates.
class FaultList {
 public:
  explicit FaultList(std::size_t most) : most_(most) {}

  bool empty() const { return findings_.empty(); }
  bool full() const { return findings_.size() >= most_; }
  std::vector<Finding> take() && { return std::move(findings_); }

  /// `at` identifies the place, so an instruction in a loop is reported once. place() is called for new findings only.
  template <class Place, class... Parts>
  void add(void const* at, Rule rule, std::string_view instruction, std::string_view operand, Place&& place,
           Parts const&... parts) {
    if (full() || !seen_.emplace(at, rule, operand).second) return;
    findings_.push_back({rule, std::string(instruction), place(), std::string(operand), detail::message_of(parts...)});
  }

 private:
  std::size_t most_;
  std::vector<Finding> findings_;
  std::set<std::tuple<void const*, Rule, std::string>> seen_;
};

}  // namespace validate_detail
}  // namespace annulus::nki
