#pragma once
// Tile programs: the buffers and instructions that every core of every rank of a ring executes.

#include <string>
#include <variant>
#include <vector>

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

}  // namespace annulus::nki
