#pragma once
// Names of buffers, older tiles, loop variables and registers in a printed kernel.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/program/program.hpp"
#include "annulus/core/error.hpp"

namespace annulus::nki::print_detail {

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

}  // namespace annulus::nki::print_detail
