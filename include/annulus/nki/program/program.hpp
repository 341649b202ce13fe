#pragma once
// Tile programs: the buffers and instructions that every core of every rank of a ring executes; their traversal, and
// the search for references to what a program does not declare.

#include <concepts>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "annulus/nki/program/instruction.hpp"

/// Trainium tile programs: built, validated, simulated, costed and printed as NKI kernels.
namespace annulus::nki {

/// Hardware generation: NeuronCore-v3 (trn2) or v4 (trn3).
enum class Target {
  trn2,  ///< NeuronCore-v3
  trn3,  ///< NeuronCore-v4
};
constexpr std::string_view name_of(Target target) { return target == Target::trn2 ? "trn2" : "trn3"; }

/// Makes a new tile of an on-chip buffer; its elements are undefined.
struct Allocate {
  int buffer = -1;  ///< number of the buffer
  bool operator==(Allocate const&) const = default;
};

/// Begins a named part of the program, for example "step" 3, used in listings and cost reports.
struct Section {
  std::string name;  ///< shown in reports
  Affine number;     ///< shown with the name
  bool operator==(Section const&) const = default;
};

struct Node;
/// Nodes in the order of their execution.
using Body = std::vector<Node>;

/// variable = 0, 1, ..., count - 1.
struct Loop {
  Variable variable = 0;  ///< counts the iterations
  Index count = 0;        ///< number of iterations
  Body body;              ///< executed in each iteration
  /// True if all members are equal.
  bool operator==(Loop const& other) const;
};

/// Nodes that only one core of an LNC pair executes. Must hold no barrier and no collective.
struct OnCore {
  int core = 0;  ///< 0 or 1
  Body body;     ///< executed by that core
  /// True if all members are equal.
  bool operator==(OnCore const& other) const;
};

/// One element of a program body.
struct Node {
  /// One of the kinds of elements.
  std::variant<Instruction, Allocate, Section, Loop, OnCore> content;

  /// True if the contents are equal.
  bool operator==(Node const& other) const { return content == other.content; }
  /// The content as a T, or null if it is of another kind.
  template <class T>
  T const* as() const {
    return std::get_if<T>(&content);
  }
};

// Not defaulted: compilers fail on a defaulted comparison that is recursive.
inline bool Loop::operator==(Loop const& other) const {
  return variable == other.variable && count == other.count && body == other.body;
}
inline bool OnCore::operator==(OnCore const& other) const { return core == other.core && body == other.body; }

/// Values that a register may hold: 0, step .. (count - 1) * step.
struct RegisterValues {
  Index count = 1;  ///< number of values
  Index step = 1;   ///< distance of consecutive ones
  bool operator==(RegisterValues const&) const = default;
  Index largest() const { return detail::saturating_product(count - 1, step); }  ///< of the values
};

/// A tile program: declarations and the body, which all cores and ranks run.
struct Program {
  std::string name;                            ///< of the kernel
  Target target = Target::trn2;                ///< hardware generation
  int cores = 1;                               ///< LNC: physical cores of a logical core, 1 or 2
  int ranks = 1;                               ///< ranks of the ring of its collectives; 1: no collectives
  std::vector<Buffer> buffers;                 ///< by number
  std::vector<std::string> variables{"core"};  ///< names, by number
  std::vector<RegisterValues> registers;       ///< by number
  std::string mask_fingerprint;                ///< of the mask whose table is an input; empty: none
  std::vector<std::string> notes;              ///< for the comment on top of its text
  Body body;                                   ///< what is executed

  bool operator==(Program const&) const = default;

  /// The buffer of a number.
  Buffer const& buffer(int number) const { return nth(buffers, number); }
  /// The buffer of an operand.
  Buffer const& buffer(Access const& access) const { return buffer(access.buffer); }
  /// Number of the buffer with that name, or -1.
  int find(std::string_view buffer_name) const {
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].name == buffer_name) return static_cast<int>(i);
    return -1;
  }
  /// Numbers of the buffers with that role, in order of declaration.
  std::vector<int> with_role(Role role) const {
    std::vector<int> numbers;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].role == role) numbers.push_back(static_cast<int>(i));
    return numbers;
  }
};

/// Calls visit(node) for every node of a body, each before those inside it.
template <class NodeBody, class Visit>
void for_each_node(NodeBody& body, Visit&& visit) {
  for (auto& node : body) {
    visit(node);
    std::visit(
        [&](auto& content) {
          if constexpr (requires { content.body; }) for_each_node(content.body, visit);
        },
        node.content);
  }
}

/// Calls visit(node, times) for the Instructions, Allocates and Sections that one core executes, `times` times each.
template <class Visit>
void for_each_executed(Body const& body, int core, Visit&& visit, Index times = 1) {
  for (Node const& node : body) {
    if (auto const* loop = node.as<Loop>()) {
      if (loop->count > 0) for_each_executed(loop->body, core, visit, times * loop->count);
    } else if (auto const* branch = node.as<OnCore>()) {
      if (branch->core == core) for_each_executed(branch->body, core, visit, times);
    } else {
      visit(node, times);
    }
  }
}

namespace program_detail {

/// Looks for references of a program to variables, registers and buffers that it does not have.
class DanglingReferences {
 public:
  explicit DanglingReferences(Program const& program) : program_(&program) {}

  /// Describes the first one; empty if there is none.
  std::string first() && {
    for_each_node(program_->body, [&](Node const& node) {
      if (auto const* made = node.as<Allocate>()) need("allocate", "buffer", made->buffer, program_->buffers.size());
      if (auto const* section = node.as<Section>()) need_variables("section " + section->name, section->number);
      if (auto const* loop = node.as<Loop>()) need_variables("a loop", Affine::of(loop->variable));
      if (auto const* instruction = node.as<Instruction>()) check(*instruction);
    });
    return std::move(found_);
  }

 private:
  void check(Instruction const& instruction) {
    for_each_field(instruction, [&]<class Value>(std::string_view keyword, Value const& value, Use) {
      std::string const operand = concat(name_of(instruction), ": operand ", keyword);
      if constexpr (std::same_as<Value, Affine>) {
        need_variables(operand, value);
      } else if constexpr (std::same_as<Value, Access>) {
        need(operand, "buffer", value.buffer, program_->buffers.size());
        if (found_.empty() && value.axes().empty()) found_ = operand + " has no axes";
        need_variables(operand, value.offset);
        if (value.register_offset) need_register(operand, value.register_offset->register_number);
      }
    });
    if (int const* set = register_of(instruction))
      need_register(concat(name_of(instruction), ": operand register"), *set);
  }

  /// `by` says what names the number.
  void need(std::string const& by, std::string_view what, Index number, std::size_t count) {
    if (found_.empty() && (number < 0 || number >= static_cast<Index>(count)))
      found_ = concat(by, " names ", what, " ", number, " of ", count);
  }
  void need_variables(std::string const& by, Affine const& index) {
    for (Affine::Term const& term : index.terms()) need(by, "variable", term.variable, program_->variables.size());
  }
  void need_register(std::string const& by, int number) { need(by, "register", number, program_->registers.size()); }

  Program const* program_;
  std::string found_;
};

}  // namespace program_detail

/// Describes the first dangling reference, with its instruction and operand; empty if there is none. Call it before an
/// unvalidated program is executed or costed.
inline std::string dangling(Program const& program) { return program_detail::DanglingReferences(program).first(); }

}  // namespace annulus::nki
