#pragma once
// Tile programs: the buffers and instructions that every core of every rank of a ring executes, and the search for
// references to what a program does not declare.

#include <string>
#include <variant>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/nki/program/instruction.hpp"

namespace annulus::nki {

/// Hardware generation: NeuronCore-v3 (trn2) or v4 (trn3).
enum class Target { trn2, trn3 };
constexpr std::string_view name_of(Target target) { return target == Target::trn2 ? "trn2" : "trn3"; }

/// Makes a new tile of an on-chip buffer; its elements are undefined.
struct Allocate {
  int buffer = -1;
  bool operator==(Allocate const&) const = default;
};

/// Begins a named part of the program, for example "step" 3, used in listings and cost reports.
struct Section {
  std::string name;
  Affine number;
  bool operator==(Section const&) const = default;
};

struct Node;
using Body = std::vector<Node>;

/// variable = 0, 1, ..., count - 1.
struct Loop {
  Variable variable = 0;
  Index count = 0;
  Body body;
  bool operator==(Loop const& other) const;
};

/// Nodes that only one core of an LNC pair executes. Must hold no barrier and no collective.
struct OnCore {
  int core = 0;
  Body body;
  bool operator==(OnCore const& other) const;
};

/// One element of a program body.
struct Node {
  std::variant<Instruction, Allocate, Section, Loop, OnCore> content;

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

/// A tile program: declarations and the body, which all cores and ranks run.
struct Program {
  std::string name;
  Target target = Target::trn2;
  int cores = 1;  ///< LNC: physical cores of a logical core, 1 or 2
  int ranks = 1;  ///< ranks of the ring of its collectives; 1: no collectives
  std::vector<Buffer> buffers;
  std::vector<std::string> variables{"core"};  ///< names, by number
  int registers = 0;
  Body body;

  bool operator==(Program const&) const = default;

  Buffer const& buffer(int number) const { return buffers[static_cast<std::size_t>(number)]; }
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

namespace dangling_detail {

/// Visitor of nodes and operands that describes the first dangling reference.
struct Search {
  Program const& program;
  std::string found{};

  /// `context` says what names the number.
  template <class... Context>
  void need(std::string_view what, Index number, Index count, Context const&... context) {
    if (found.empty() && (number < 0 || number >= count))
      found = message_of(context..., "names ", what, ' ', number, " of ", count);
  }
  template <class... Context>
  void index(Affine const& affine, Context const&... context) {
    for (Affine::Term const& term : affine.terms())
      need("variable", term.variable, std::ssize(program.variables), context...);
  }

  void operator()(Body const& body) {
    for (Node const& node : body)
      if (found.empty()) std::visit(*this, node.content);
  }
  void operator()(Instruction const& instruction) {
    std::visit([&](auto const& typed) { for_each_access(typed, Operands{*this, typed.name}); }, instruction);
    if (auto const* query = std::get_if<ProcessingRank>(&instruction))
      need("register", query->register_number, program.registers, query->name, ": operand register ");
  }
  void operator()(Allocate const& made) { need("buffer", made.buffer, std::ssize(program.buffers), "allocate "); }
  void operator()(Section const& section) { index(section.number, "section ", section.name, ' '); }
  void operator()(Loop const& loop) {
    need("variable", loop.variable, std::ssize(program.variables), "a loop ");
    (*this)(loop.body);
  }
  void operator()(OnCore const& branch) { (*this)(branch.body); }

  struct Operands {
    Search& search;
    std::string_view instruction;

    void operator()(std::string_view keyword, Affine const& index) {
      search.index(index, instruction, ": operand ", keyword, ' ');
    }
    void operator()(std::string_view keyword, Use, Access const& access) {
      search.need("buffer", access.buffer, std::ssize(search.program.buffers), instruction, ": operand ", keyword, ' ');
      if (search.found.empty() && access.axes().empty())
        search.found = message_of(instruction, ": operand ", keyword, " has no axes");
      (*this)(keyword, access.offset);
      if (access.register_offset)
        search.need("register", access.register_offset->register_number, search.program.registers, instruction,
                    ": operand ", keyword, ' ');
    }
  };
};

}  // namespace dangling_detail

/// Describes the first dangling reference, with its instruction and operand; empty if there is none. Call it before an
/// unvalidated program is executed or costed.
inline std::string dangling(Program const& program) {
  dangling_detail::Search search{program};
  search(program.body);
  return search.found;
}

}  // namespace annulus::nki
