#pragma once
// A tile program: what every core of every rank of a ring runs.

#include <string>
#include <variant>
#include <vector>

#include "annulus/backend/nki/program/instruction.hpp"

namespace annulus::nki {

enum class Target { trn2, trn3 };
constexpr std::string_view name_of(Target target) { return target == Target::trn2 ? "trn2" : "trn3"; }

/// Makes a new tile of an on-chip buffer; its elements are undefined.
struct Allocate {
  int buffer = -1;
  bool operator==(Allocate const&) const = default;
};

/// Begins a named part of the program, for the reader and for the cost of each: "step", 2 * pair + 1.
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

/// Done by one core of an LNC pair only. Holds no barrier and no collective.
struct OnCore {
  int core = 0;
  Body body;
  bool operator==(OnCore const& other) const;
};

struct Node {
  std::variant<Instruction, Allocate, Section, Loop, OnCore> content;

  bool operator==(Node const& other) const { return content == other.content; }
  /// Null if the node is something else.
  template <class T>
  T const* as() const {
    return std::get_if<T>(&content);
  }
};

// Not defaulted: compilers lose their way in a comparison that needs itself.
inline bool Loop::operator==(Loop const& other) const {
  return variable == other.variable && count == other.count && body == other.body;
}
inline bool OnCore::operator==(OnCore const& other) const { return core == other.core && body == other.body; }

struct Program {
  std::string name;
  Target target = Target::trn2;
  int cores = 1;  ///< LNC: physical cores that run it together
  int ranks = 1;  ///< of the ring that its collectives run on; 1: none
  std::vector<Buffer> buffers;
  std::vector<std::string> variables{"core"};  ///< names, by number
  int registers = 0;
  Body body;

  bool operator==(Program const&) const = default;

  Buffer const& buffer(int number) const { return buffers[static_cast<std::size_t>(number)]; }
  Buffer const& buffer(Access const& access) const { return buffer(access.buffer); }
  /// Number of the buffer of that name, -1 if there is none.
  int find(std::string_view buffer_name) const {
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].name == buffer_name) return static_cast<int>(i);
    return -1;
  }
  std::vector<int> with_role(Role role) const {
    std::vector<int> numbers;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].role == role) numbers.push_back(static_cast<int>(i));
    return numbers;
  }
};

}  // namespace annulus::nki
