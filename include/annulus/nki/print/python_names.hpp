#pragma once
// Words of a printed kernel: spellings of NKI versions, literals of values, and names of buffers, loops and registers.

#include <charconv>
#include <cmath>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/nki/program/access.hpp"
#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// NKI versions; 0.3, 0.4, 0.5 and 0.6 come with Neuron SDK 2.29, 2.30, 2.31 and 2.32.
enum class Version { nki_0_3, nki_0_4, nki_0_5, nki_0_6 };

/// Spellings of one NKI version.
struct Spelling {
  std::string_view version;  ///< oldest version that accepts the text
  std::string_view sdk;
  bool tensor_scalar_reduce_command;  ///< tensor_scalar_reduce accepts reduce_cmd
};

/// Spelling of a version. to_python() defaults to the oldest, nki_0_3, whose text every later version accepts.
///
/// Later versions added view methods, DMA priorities, names of collectives and run-time loops. Printed kernels need
/// none of these: access patterns replace views, and collectives must not be in run-time loops. affine_range and
/// similar older spellings of loops mean range() in all of these versions and are deprecated from 0.6.
constexpr Spelling spelling_of(Version version) {
  constexpr Spelling table[] = {
      {"0.3", "2.29", false}, {"0.4", "2.30", true}, {"0.5", "2.31", true}, {"0.6", "2.32", true}};
  return table[static_cast<int>(version)];
}

namespace print_detail {

inline std::string literal(bool value) { return value ? "True" : "False"; }
inline std::string literal(int value) { return std::to_string(value); }
inline std::string literal(Index value) { return std::to_string(value); }

template <class Real>
std::string shortest_digits(Real value) {
  char digits[64];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

/// Shortest digits that Python reads as a double which rounds to `value`; a Python float, never an int. Throws
/// UnsupportedError unless `value` is finite.
inline std::string literal(float value) {
  if (!std::isfinite(value))
    throw UnsupportedError("an NKI kernel holds the value " + shortest_digits(value) +
                           "; accepted: finite values, as Python has no literals for others");
  std::string text = shortest_digits(value);
  double reread = 0;
  std::from_chars(text.data(), text.data() + text.size(), reread);
  // The shortest digits of a float may give another float when they are rounded to double first.
  if (static_cast<float>(reread) != value) text = shortest_digits(static_cast<double>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

template <class Item, class Write>
std::string list(std::span<Item const> items, Write&& write) {
  std::string text = "[";
  for (std::size_t i = 0; i < items.size(); ++i) text += (i == 0 ? "" : ", ") + write(items[i]);
  return text + "]";
}

/// [[stride, count], ...]
inline std::string literal(std::span<Axis const> axes) {
  return list(axes, [](Axis const& axis) { return "[" + literal(axis.stride) + ", " + literal(axis.count) + "]"; });
}

/// [0, 1, 2], or [0] * 32 where all are equal.
inline std::string literal(std::span<int const> numbers) {
  for (int number : numbers)
    if (number != numbers.front()) return list(numbers, [](int value) { return literal(value); });
  if (numbers.size() < 2) return list(numbers, [](int value) { return literal(value); });
  return "[" + literal(numbers.front()) + "] * " + std::to_string(numbers.size());
}

/// (2, 128, 64); one extent: (64,).
inline std::string tuple(std::span<Index const> extents) {
  std::string text = list(extents, [](Index extent) { return literal(extent); });
  text.front() = '(';
  text.back() = extents.size() == 1 ? ',' : ')';
  return extents.size() == 1 ? text + ")" : text;
}

/// Assigns unique names. The kernel and its buffers keep theirs, which callers see and which must be unique
/// identifiers. Internal names (core, loops, registers, tile_1 for the tile before tile) get underscores on a
/// collision. Throws UnsupportedError for a name that is invalid, reserved or used twice.
class PythonNames {
 public:
  explicit PythonNames(Program const& program) : taken_(reserved_) {
    require_identifier("program", program.name);
    for (Buffer const& buffer : program.buffers) {
      require_identifier("buffer", buffer.name);
      if (!taken_.insert(buffer.name).second)
        throw UnsupportedError("the program " + program.name + " has a buffer named " + buffer.name +
                               "; accepted: names used once that are none of Python's words, modules or arguments");
      tiles_.push_back({buffer.name});
    }
    for (std::string const& variable : program.variables) variables_.push_back(claim(variable));
    for (int i = 0; i < program.registers; ++i) registers_.push_back(claim("r" + std::to_string(i)));
    name_older_tiles(program, program.body);
  }

  /// Name of the tile of a buffer that was made `age` Allocates before the newest.
  std::string const& tile(int buffer, int age) const { return at(at(tiles_, buffer), age); }
  std::string const& tensor(int buffer) const { return tile(buffer, 0); }
  std::vector<std::string> const& variables() const { return variables_; }
  std::string const& variable(Variable number) const { return at(variables_, number); }
  std::string const& register_name(int number) const { return at(registers_, number); }
  /// Names of the replica group of the ring and of its argument.
  static constexpr std::string_view ring = "ring", replica_groups = "replica_groups";

 private:
  template <class T>
  static T const& at(std::vector<T> const& all, int number) {
    if (number < 0 || static_cast<std::size_t>(number) >= all.size())
      throw UnsupportedError("a program names buffer, variable or register number " + std::to_string(number) +
                             "; it has " + std::to_string(all.size()));
    return all[static_cast<std::size_t>(number)];
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_letter_or_digit(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  static void require_identifier(std::string const& what, std::string const& name) {
    bool good = !name.empty() && !is_digit(name[0]);
    for (char c : name) good = good && (c == '_' || is_letter_or_digit(c));
    if (!good || reserved_.contains(name))
      throw UnsupportedError("a " + what + " is named '" + name +
                             "'; accepted in a Python kernel: letters, digits and underscores, no reserved word");
  }

  std::string claim(std::string name) {
    for (char& c : name)
      if (!is_letter_or_digit(c)) c = '_';
    if (name.empty() || is_digit(name[0])) name.insert(0, "i");
    while (!taken_.insert(name).second) name += "_";
    return name;
  }

  void name_older_tiles(Program const& program, Body const& body) {
    for (Node const& node : body) {
      if (auto const* loop = node.as<Loop>()) name_older_tiles(program, loop->body);
      if (auto const* branch = node.as<OnCore>()) name_older_tiles(program, branch->body);
      if (auto const* allocate = node.as<Allocate>()) at(tiles_, allocate->buffer);
      auto const* instruction = node.as<Instruction>();
      if (!instruction) continue;
      for_each_access(*instruction, [&](std::string_view, Use, Access const& access) {
        at(tiles_, access.buffer);
        std::vector<std::string>& names = tiles_[static_cast<std::size_t>(access.buffer)];
        while (static_cast<int>(names.size()) <= access.age)
          names.push_back(claim(names.front() + "_" + std::to_string(names.size())));
      });
    }
  }

  inline static std::set<std::string> const reserved_{
      "False",    "None",  "True",     "and",  "as",     "assert", "async", "await",         "break",
      "case",     "class", "continue", "def",  "del",    "elif",   "else",  "except",        "finally",
      "for",      "from",  "global",   "if",   "import", "in",     "is",    "lambda",        "match",
      "nonlocal", "not",   "or",       "pass", "raise",  "return", "try",   "while",         "with",
      "yield",    "range", "nki",      "nisa", "nl",     "ncc",    "ring",  "replica_groups"};

  std::set<std::string> taken_;
  std::vector<std::vector<std::string>> tiles_;
  std::vector<std::string> variables_, registers_;
};

}  // namespace print_detail

}  // namespace annulus::nki
